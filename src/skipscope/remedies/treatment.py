"""One remedy at work on a model: what it finds, changes, proves and tells."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from skipscope.acting import ACTING
from skipscope.example import check_model
from skipscope.intervention.rehearsal import Key
from skipscope.look import Look
from skipscope.names import counted
from skipscope.records import Site
from skipscope.remedies.ends import End, Ends, ends_of
from skipscope.remedies.factor import Factor, Learned, instead
from skipscope.remedies.named import modules_of, parameters_of
from skipscope.remedies.proof import PROBE, Forward, Scaled
from skipscope.remedies.refusals import Refusals, why_trained
from skipscope.remedies.scaled import Pair, made_small, remember, why_done, why_small
from skipscope.restore import unchanged
from skipscope.rule import listed
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
        own = {id(module) for module in model.modules()}
        for other, sums in ACTING.items():
            if not own.isdisjoint(map(id, other.modules())):
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
        self._call = remedy, model, example, kwargs
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
        """Whether all that a factor would change is 0."""
        return all(self.size(name) == 0 for name in self._refusals.changeable(end))

    def refuse_scaled(self, factor: Callable[[Site], float]) -> None:
        """Notes which branches are scaled already, by this remedy or as they were made."""
        for site, end in self.each():
            names = self._refusals.changeable(end)
            self.refuse(site, why_done(self._tensors[name] for name in names))
        pairs = [pair for site, end in self.each() for pair in self._pairs(site, end, factor(site))]
        if made_small(pairs):
            for site in dict.fromkeys(pair.site for pair in pairs):
                self.refuse(site, why_small(pairs))

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
        """Matrices and numbers of a branch, before its end, that are 0 all over."""
        before = [name for name in site.parameters if name not in end.parameters]
        return [n for n in before if self._tensors[n].dim() != 1 and self.size(n) == 0]

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
                look = Look(*self._call, None)
            zero = look.zero()
            for site, end in self.each():
                key = _key(site)
                if key in look.nonzero():
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

    def scale(self, alpha: float, learned: Learned) -> Account:
        """Hangs a factor on the module that each branch ends in, and proves it; else undoes all."""
        before = Forward(*self._call)
        factors: list[tuple[Site, Factor]] = []
        try:
            for site, end in self.each():
                path, module, output = self.carrier(end)
                factors.append((site, Factor(path, module, learned, output or ())))
            self._prove(factors, before, alpha)
        except BaseException:
            for _, factor in factors:
                factor.remove()
            raise
        for _, factor in factors:
            factor.settle(alpha)
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()  # code that was compiled before knows nothing of new hooks
        made = [factor.value for _, factor in factors if isinstance(factor.value, nn.Parameter)]
        changes = [
            Change(site.name, f"{factor.path}.branch_scale".lstrip("."), 1.0, alpha)
            for site, factor in factors
        ]
        return Account(self.remedy, tuple(changes), tuple(made))

    def _prove(self, factors: Sequence[tuple[Site, Factor]], before: Forward, alpha: float) -> None:
        """Looks whether each branch follows its factor, and whether anything else does."""
        after = self._scaled(before, factors)
        for site, factor in factors:
            why = after.why_not(_key(site), factor.path or "the model")
            self.refuse(site, why and why + instead(alpha))
        self.stop_if_refused()
        if not after.further():
            return
        further = {s.name: self._scaled(before, [(s, f)]).further() for s, f in factors}
        for site, factor in factors:
            why = further[site.name] if any(further.values()) else after.further()
            by = factor.path or "the model"
            self.refuse(site, why and f"a factor on the output of {by} also changes {why}")
        self.stop_if_refused()

    def _scaled(self, before: Forward, factors: Sequence[tuple[Site, Factor]]) -> Scaled:
        """A forward in which these factors act alone."""
        for _, factor in factors:
            factor.set(PROBE)
        values = {_key(site): factor.value for site, factor in factors}
        scaled = Scaled(*self._call, before, values)
        for _, factor in factors:
            factor.set(1.0)
        return scaled


def _key(site: Site) -> Key:
    return site.module, site.source, site.occurrence


def _size(tensor: Tensor) -> float:
    return float(tensor.detach().double().square().mean().sqrt())
