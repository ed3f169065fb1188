"""One remedy at work on a model: what it finds, changes, proves and tells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from skipscope.acting import sharing
from skipscope.example import check_model
from skipscope.look import Look
from skipscope.names import counted
from skipscope.records import Site
from skipscope.remedies.ends import End, Ends, ends_of, owner_of
from skipscope.remedies.factor import scale_of
from skipscope.remedies.named import modules_of, parameters_of
from skipscope.remedies.refusals import Refusals, why_trained
from skipscope.remedies.scaled import (
    Pair,
    made_small,
    remember,
    why_done,
    why_factor,
    why_small,
)
from skipscope.restore import unchanged
from skipscope.rule import listed
from skipscope.rule.dead_advice import is_bias
from skipscope.selection import asked, chosen

#: Activations without gradient at 0.
FLAT_AT_ZERO = frozenset({"relu", "threshold", "hardtanh"})

Trained = Literal["refuse", "allow"]


@dataclass(frozen=True)
class Change:
    """One parameter before and after."""

    site: str
    parameter: str
    before: float  #: root of the mean square of its entries
    after: float


@dataclass(frozen=True)
class Account:
    """What a remedy changed; `print` shows it."""

    remedy: str
    changes: tuple[Change, ...]
    parameters: tuple[nn.Parameter, ...] = ()  #: new ones, for the optimizer

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites acted on."""
        return tuple(dict.fromkeys(change.site for change in self.changes))

    @property
    def group(self) -> dict[str, Any]:
        """An optimizer group of the new parameters, without weight decay."""
        return {"params": list(self.parameters), "weight_decay": 0.0}

    def __str__(self) -> str:
        lines = [f"{self.remedy}: {counted(len(self.sites), 'branch', 'branches')}"]
        lines += [
            f"  {c.site}  {c.parameter}  {c.before:.3g} -> {c.after:.3g}" for c in self.changes
        ]
        if self.parameters:
            lines.append(
                f"{counted(len(self.parameters), 'new parameter')}, also in state_dict: build the "
                "optimizer now, with all of `.group` in a group without weight decay"
            )
        return "\n".join(lines)


class Treatment:
    """One remedy at work on a model."""

    def __init__(
        self,
        remedy: str,
        model: nn.Module,
        example: tuple[Any, ...],
        kwargs: dict[str, Any],
        sites: str | Sequence[str] | None,
        trained: Trained,
    ) -> None:
        check_model(remedy, model)
        names = asked(remedy, sites)
        for _, sums in sharing(model):
            raise ValueError(
                f"{remedy}: an intervention is open on the model ({sums}), so its sums are not "
                "its own; call it outside of that context"
            )
        if trained not in ("refuse", "allow"):
            raise ValueError(f'{remedy}: trained is "refuse" or "allow", got {trained!r}')
        hollow = next((name for name, p in parameters_of(model).items() if p.is_meta), None)
        if hollow is not None:
            raise ValueError(
                f"{remedy}: {hollow} is on the meta device and holds no numbers; load or make the "
                "model's weights first"
            )
        why = why_trained(model) if trained != "allow" else ""
        if why:
            raise ValueError(
                f"{remedy}: the model looks trained or loaded: {why}. It would lose what it has "
                'learned; a learned scale of 1 (scale_branches) changes nothing. trained="allow" '
                "does it all the same"
            )
        self.remedy, self.model = remedy, model
        self.call = remedy, model, example, kwargs
        self.ends: Ends = ends_of(remedy, model, example, kwargs)
        self._chosen = chosen(self.ends.sites, names, remedy)
        self._tensors = parameters_of(model)
        self._modules = modules_of(model)
        self._refusals = Refusals(model, self.ends, self._chosen)
        ends = [self.ends.at(site) for site in self.ends.sites.sites]
        self._carried = Counter(self.ends.carrier(end) for end in ends if end.parameters)

    def each(self) -> list[tuple[Site, End]]:
        """The sites to act on, with their ends."""
        return [(site, self.ends.at(site)) for site in self._chosen]

    def carrier(self, end: End) -> tuple[str, nn.Module, tuple[int, ...] | None]:
        """The module whose output holds what a branch ends in: path, itself, shape of its output.

        The shape is None where that is no tensor.
        """
        path = self.ends.carrier(end)
        return path, self._modules[path], self.ends.outputs[path]

    def carried(self, path: str) -> int:
        """How many branches end in a module."""
        return self._carried[path]

    def size(self, name: str) -> float:
        """Root of the mean square of a parameter's entries."""
        return _size(self._tensors[name])

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a parameter."""
        return tuple(self._tensors[name].shape)

    def refuse(self, site: Site, why: str) -> None:
        """Notes a reason, where there is one."""
        self._refusals.note(site, why)

    def stays_zero(self, end: End) -> bool:
        """Whether there is something that a factor would change, and all of it is 0."""
        names = self._refusals.changeable(end)
        return bool(names) and all(self.size(name) == 0 for name in names)

    def refused(self, site: Site) -> bool:
        """Whether a reason is noted against a site."""
        return self._refusals.against(site)

    def why_scaled(self, end: End) -> str:
        """Why a branch is scaled already, as a remedy has left it; "" where it is not."""
        names = self._refusals.changeable(end)
        if not names:
            return ""
        scales = [scale for m in self._around(end) if (scale := scale_of(m)) is not None]
        return why_factor(scales) or why_done(self._tensors[name] for name in names)

    def _around(self, end: End) -> list[nn.Module]:
        """The modules that hold what a branch ends in, and the one that returns it."""
        paths = dict.fromkeys([*map(owner_of, end.parameters), self.ends.carrier(end)])
        return [self._modules[path] for path in paths if path in self._modules]

    def made_small(self, factor: Callable[[Site], float]) -> dict[str, str]:
        """Why branches are scaled already as the model made them, by the names of their sites."""
        pairs = [pair for site, end in self.each() for pair in self._pairs(site, end, factor(site))]
        small = made_small(pairs)
        return {pair.site.name: why_small(small) for pair in small}

    def _pairs(self, site: Site, end: End, factor: float) -> Iterator[Pair]:
        """The last matrix of a branch beside each other one that is not 0."""
        shapes = {n: self.shape(n) for n in site.parameters if self._tensors[n].dim() == 2}
        sizes = {name: size for name in shapes if (size := self.size(name)) > 0}
        last = [name for name in sizes if name in end.parameters]
        if end.kinds != {"matrix"} or not last:
            return
        for other in (name for name in sizes if name not in end.parameters):
            ratio = sizes[last[0]] / sizes[other]
            both: Any = shapes[last[0]], shapes[other]
            yield Pair(site, ratio, factor, both)

    def remember(self, factor: Callable[[Site], float]) -> None:
        """Keeps what was multiplied, so that a second time is noticed."""
        for site, end in self.each():
            for name in self._refusals.changeable(end):
                remember(self._tensors[name], factor(site))

    def zeros(self, site: Site, end: End) -> list[str]:
        """Factors of a branch, before its end, that are 0 all over."""
        before = [name for name in site.parameters if name not in end.parameters]
        return [name for name in before if not is_bias(name) and self.size(name) == 0]

    def stop_if_refused(self) -> None:
        """Raises with all reasons."""
        self._refusals.check(self.remedy)

    def multiply(self, factor: Callable[[Site], float]) -> Account:
        """Multiplies the last weights of each branch."""
        changes = []
        self._before: dict[str, Tensor] = {}
        with torch.no_grad():
            for site, end in self.each():
                for name in self._refusals.changeable(end):
                    tensor = self._tensors[name]
                    self._before[name] = tensor.detach().clone()
                    before = _size(tensor)
                    tensor.mul_(factor(site))
                    if factor(site) == 0.0:
                        tensor.zero_()  # NaN times 0 is NaN
                    if before != 0:  # a bias at 0 stays as it is
                        changes.append(Change(site.name, name, before, _size(tensor)))
        return Account(self.remedy, tuple(changes))

    def prove_awake(self) -> None:
        """Looks whether every branch is 0 and gets a gradient; else all is as before.

        In evaluation mode, where nothing is dropped at random.
        """
        try:
            with unchanged(self.model):
                self.model.eval()
                look = Look(*self.call, None)
            zero, nonzero = look.zero(), look.nonzero()
            for site, end in self.each():
                key = site.key
                if key in nonzero:
                    self.refuse(site, "with its last weight at 0 the branch is not 0")
                elif zero.get(key, True) is False:
                    self.refuse(site, self._why_asleep(site, end))
            self.stop_if_refused()
        except BaseException:
            with torch.no_grad():
                for name, before in self._before.items():
                    self._tensors[name].copy_(before)
            raise

    def _why_asleep(self, site: Site, end: End) -> str:
        if end.gated:
            return (
                "its gate and its value come from one weight: at 0 both are, and so is every "
                "gradient, for ever"
            )
        others = self.zeros(site, end)
        flat = [name for name in end.activations if name in FLAT_AT_ZERO]
        if flat and not others:
            return (
                f"it ends in {flat[0]} behind its last weight, which has no gradient "
                "at 0: the branch would be dead for ever"
            )
        named = f" ({listed(others)})" if others else ""
        return (
            f"at 0 it gets no gradient: another factor of it is 0 as well{named}; draw that one "
            "again (torch.nn.init)"
        )


def _size(tensor: Tensor) -> float:
    return float(tensor.detach().double().square().mean().sqrt())
