"""Why a remedy would do harm: what it must not touch, told with reasons before it does anything."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import nn

from skipscope.find.paths import canonical
from skipscope.records import Site
from skipscope.remedies.ends import End, Ends, owner_of
from skipscope.remedies.named import modules_of, parameters_of
from skipscope.rule import listed

#: A fresh parameter was written to so often at most, by its initialisation.
FRESH_WRITES = 8


class Refusals:
    """What speaks against changing the ends of some sites' branches."""

    def __init__(self, model: nn.Module, ends: Ends, sites: Sequence[Site]) -> None:
        self._ends = ends
        self._parameters = parameters_of(model)
        self._weights = _weight_norms(model)
        self._computed = _computed(model)
        self._tied = _tied(model)
        self._readers = Counter(n for s in ends.sites.sites for n in ends.at(s).parameters)
        self._reasons: dict[str, list[str]] = defaultdict(list)
        for site in sites:
            for why in self._why(ends.at(site)):
                self.note(site, why)

    def note(self, site: Site, why: str) -> None:
        """Notes a reason, where there is one."""
        if why:
            self._reasons[why].append(site.name)

    def against(self, site: Site) -> bool:
        """Whether a reason is noted against a site."""
        return any(site.name in names for names in self._reasons.values())

    def check(self, remedy: str) -> None:
        """Raises where there is any.

        Raises:
            ValueError: with every reason and the sites it is about.
        """
        if self._reasons:
            told = "; ".join(f"{listed(names)}: {why}" for why, names in self._reasons.items())
            raise ValueError(f"{remedy} changed nothing: {told}. sites= leaves these out")

    def changeable(self, end: End) -> list[str]:
        """The parameters whose factor is that of the branch: of weight_norm g, and not v."""
        return [name for name in end.parameters if self._weights.get(name, "g") == "g"]

    def _why(self, end: End) -> Iterator[str]:
        if end.unclear:
            yield f"its last operation, {end.unclear}, holds no weight that could be changed alone"
        elif end.bare_norm and not end.kinds:
            yield (
                "it ends in a norm without weight, which undoes every scale before it; give the "
                "norm a weight"
            )
        elif end.bare_norm:
            yield "a part of it ends in a norm without weight"
        elif end.sliced and not end.gated:
            yield "it ends in a part of what its last weight makes, and the rest goes elsewhere"
        elif not end.kinds:
            yield "no weight was found at its end"
        for name in end.parameters:
            yield from self._why_parameter(name)
        for module in {owner_of(name): None for name in end.parameters}:
            if module in self._computed:
                yield (
                    f"the weight of {module} goes through {self._computed[module]}, which does not "
                    "keep its scale"
                )
        idle = [other for name in end.parameters for other in self._siblings(name)]
        if idle:
            yield (
                f"{listed(idle)} stand beside its last weights and had no part in this forward: of "
                "experts all must be changed or none, so give an example that reaches all"
            )

    def _siblings(self, name: str) -> Iterator[str]:
        """Parameters that differ in one number of their path only, and were not used."""
        for gap in _gaps(name):
            yield from (other for other in self._unused.get(gap, ()) if other != name)

    @cached_property
    def _unused(self) -> dict[tuple[str, ...], list[str]]:
        """What had no part in the forward, by its path with one number left open."""
        found: dict[tuple[str, ...], list[str]] = defaultdict(list)
        uses = self._ends.uses
        unused = [name for name in self._parameters if not uses.get(name)] if uses else []
        for name in unused:
            for gap in _gaps(name):
                found[gap].append(name)
        return found

    def _why_parameter(self, name: str) -> Iterator[str]:
        if not self._parameters[name].requires_grad:
            yield f"{name} is frozen"
        if self._readers[name] > 1:
            yield f"{name} is shared by {self._readers[name]} branches"
        elif name in self._tied:
            yield f"{name} is tied to {self._tied[name]}"
        elif self._ends.uses.get(name, 0) > 1 and self._weights.get(name) is None:
            yield f"{name} is used {self._ends.uses[name]} times in one forward"


def _gaps(name: str) -> Iterator[tuple[str, ...]]:
    """A path's pieces, with "*" for one of its numbers each time.

    >>> list(_gaps("experts.3.fc.0"))
    [('experts', '*', 'fc', '0'), ('experts', '3', 'fc', '*')]
    """
    parts = tuple(name.split("."))
    for place, part in enumerate(parts):
        if part.isdigit():
            yield (*parts[:place], "*", *parts[place + 1 :])


def why_trained(model: nn.Module) -> str:
    """What says that a model's weights are not those of a fresh start; "" where nothing does.

    Initialisations write as optimizers do, so the first few steps are not told from one; a net
    without norms that was loaded or copied leaves no trace to see.
    """
    for name, parameter in parameters_of(model).items():
        if parameter.grad is not None:
            return f"{name} has a gradient"
        if not parameter.is_inference() and parameter._version > FRESH_WRITES:
            return f"{name} was written to {parameter._version} times"
    for name, module in modules_of(model).items():
        seen = getattr(module, "num_batches_tracked", None)
        if isinstance(seen, torch.Tensor) and seen.numel() == 1 and int(seen) > 0:
            return f"{name} has normalised {int(seen)} batches"
        weight = module._parameters.get("weight")  # asked for by name, a computed one is computed
        if "Norm" not in type(module).__name__ or weight is None:
            continue
        if bool((weight != weight.reshape(-1)[:1]).any()):
            return f"the weights of {name} differ from each other"
    return ""


def _weight_norms(model: nn.Module) -> dict[str, str]:
    """The g and v of weight_norm, by parameter."""
    found: dict[str, str] = {}
    for path, module in modules_of(model).items():
        at = f"{path}." if path else ""
        for name, _ in module.named_parameters(recurse=False):
            if name.endswith("_g") and hasattr(module, f"{name[:-2]}_v"):
                found.update({f"{at}{name}": "g", f"{at}{name[:-2]}_v": "v"})
        for name, chain in getattr(module, "parametrizations", {}).items():
            if [type(part).__name__ for part in chain] == ["_WeightNorm"]:
                inside = f"{at}parametrizations.{name}.original"
                found.update({f"{inside}0": "g", f"{inside}1": "v"})
    return found


def _computed(model: nn.Module) -> dict[str, str]:
    """Modules whose weight is computed, with what computes it; weight_norm keeps the scale."""
    found: dict[str, str] = {}
    for path, module in modules_of(model).items():
        hooks = [type(hook).__name__ for hook in module._forward_pre_hooks.values()]
        if "SpectralNorm" in hooks:
            found[path] = "spectral_norm"
        for chain in getattr(module, "parametrizations", {}).values():
            kinds = [type(part).__name__.strip("_") for part in chain]
            if kinds != ["WeightNorm"]:
                found[path] = "spectral_norm" if kinds == ["SpectralNorm"] else listed(kinds)
    return found


def _tied(model: nn.Module) -> dict[str, str]:
    """Parameters that have a second name, with that."""
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        name = canonical(path)
        if first.setdefault(id(parameter), name) != name:
            tied.setdefault(first[id(parameter)], name)
    return tied
