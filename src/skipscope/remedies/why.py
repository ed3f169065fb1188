"""Why one remedy would do harm to one branch, and which other one could stand in for it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from skipscope.records import Site
from skipscope.remedies.ends import End, owner_of
from skipscope.remedies.factor import Learned, channels_of
from skipscope.remedies.treatment import Treatment
from skipscope.rule import listed
from skipscope.rule.dead_advice import is_bias

#: A branch scale below this and a last matrix at 0: no gradient to speak of.
SMALL_SCALE = 0.1
#: Activations that a factor above 0 goes through.
_KEEPS_FACTORS = ("relu", "leakyrelu")
#: Activations that are 0 at 0 and have a gradient there.
_WAKES_AT_ZERO = frozenset({"tanh", "gelu", "silu", "elu", "leakyrelu", "mish", "glu"})


def _why_not_linear(end: End, but: Sequence[str] = ()) -> str:
    """Why a factor at the branch's last weight is none of the branch.

    Args:
        end: how the branch ends.
        but: activations that keep a factor.
    """
    if end.gated:
        return "it ends in a gate and a value from one weight (a GLU), whose product scales twice"
    bent = [name for name in end.activations if name not in but]
    return f"it ends in {bent[0]} behind its last weight, which is not linear" if bent else ""


def why_not_depth(work: Treatment, end: End) -> str:
    """Why the last weights times a factor above 0 are not the branch times that."""
    why = _why_not_linear(end, but=_KEEPS_FACTORS)
    if not why and work.stays_zero(end):
        why = f"{next(iter(end.parameters))} is 0 and stays 0, whatever it is multiplied by"
    return why


def why_not_zero(work: Treatment, site: Site, end: End) -> str:
    """Why a branch with its last weight at 0 would hardly wake; the proof finds what never does."""
    if abs(end.alpha) < SMALL_SCALE:
        return f"its branch scale is {end.alpha:g}: with the last weight at 0 it hardly ever wakes"
    return why_zero_already(work, site, end)


def why_zero_already(work: Treatment, site: Site, end: End) -> str:
    """Why a factor of 0 would be the second one of a branch."""
    weights = [name for name in end.parameters if not is_bias(name)]
    zero = bool(weights) and all(work.size(name) == 0 for name in weights)
    others = [name for name in work.zeros(site, end) if name in end.idle]
    if zero and others and weights[0] in end.idle:
        return (
            f"{weights[0]} is 0 already and so is {listed(others)}, so none of them gets a "
            f"gradient: draw {listed(others)} again (torch.nn.init) and leave {weights[0]} at 0"
        )
    small = [name for name in end.parameters if work.size(name) < SMALL_SCALE]
    # A weight of 0 whose branch is not 0 is kept as its distance from 1.
    if small and "scale" in end.kinds and (work.size(small[0]) > 0 or end.idle):
        return (
            f"its branch scale {small[0]} is {work.size(small[0]):.3g} already: two factors near "
            "0 leave no gradient"
        )
    return f"{weights[0]} is 0 already" if zero else ""


def instead(work: Treatment, site: Site, alpha: float) -> str:
    """What does the same to the weights, and would be accepted, where no factor can be hung."""
    end = work.ends.at(site)
    if work.refused(site) or alpha < 0 or alpha == 1:
        return ""
    if alpha == 0:
        wakes = _WAKES_AT_ZERO.issuperset(end.activations) and not end.gated
        if not wakes or work.zeros(site, end) or why_not_zero(work, site, end):
            return ""
        return "; zero_init_branches sets its last weights to 0 instead"
    if why_not_depth(work, end) or work.why_scaled(end) or work.made_small(lambda _: alpha):
        return ""
    return f"; depth_scaled_init(..., factor={alpha:g}) multiplies its last weights instead"


def why_not_factor(work: Treatment, site: Site, end: End, alpha: float, learned: Learned) -> str:
    """Why no factor can be hung behind what a branch ends in."""
    bent = _why_not_linear(end)
    if bent and not end.gated:
        other = instead(work, site, alpha)
        return bent + (other or "; write the factor into the forward, behind it")
    return bent or _why_not_one_module(work, site, end, alpha, learned)


def _why_not_one_module(
    work: Treatment, site: Site, end: End, alpha: float, learned: Learned
) -> str:
    if not end.parameters:
        return ""  # which is refused already
    owners = {owner_of(name) for name in end.parameters}
    if len(owners) != 1:
        return f"its last values come from {len(owners)} modules{instead(work, site, alpha)}"
    path, module, output = work.carrier(end)
    within = path or "the model"
    if output is None:
        other = instead(work, site, alpha)
        return f"{within}, in which its last weight works, returns no tensor{other}"
    if work.carried(path) > 1 and not work.refused(site):
        count, other = work.carried(path), instead(work, site, alpha)
        return f"{count} branches end in {within}, and a factor scales them all{other}"
    if hasattr(module, "branch_scale"):
        return "it has a branch_scale already"
    if learned == "channel":
        return _why_no_channels(work, end, module, output)
    return ""


def _why_no_channels(work: Treatment, end: End, module: nn.Module, output: tuple[int, ...]) -> str:
    """Why there is no one factor for each channel, beside those that the branch has."""
    if "norm" in end.kinds:
        return 'it ends in a norm, whose weight is a factor for each channel: use "scalar"'
    if "scale" in end.kinds:
        return 'it ends in a trained factor already: use "scalar"'
    if isinstance(module, nn.modules.conv._ConvNd):
        return ""
    sizes = {size for name in end.parameters for size in work.shape(name)}
    if end.convolved or not sizes.issuperset(channels_of(module, output)):
        return (
            f'the channels of what {type(module).__name__} returns are not its last: use "scalar"'
        )
    return ""
