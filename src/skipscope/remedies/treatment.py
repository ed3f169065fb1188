"""One remedy at work on a model: what it finds, changes, proves and tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from skipscope.example import check_model
from skipscope.intervention.arm import names_of, sites_of
from skipscope.look import Look
from skipscope.records import Site
from skipscope.remedies.ends import End, Ends, ends_of, owner_of
from skipscope.remedies.refusals import Refusals, why_trained
from skipscope.reports._text import counted
from skipscope.restore import unchanged

Trained = Literal["refuse", "allow"]
Learned = Literal["no", "scalar", "channel"]


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
        names = names_of(sites, remedy)
        if trained not in ("refuse", "allow"):
            raise ValueError(f'{remedy}: trained is "refuse" or "allow", got {trained!r}')
        hollow = next((name for name, p in model.named_parameters() if p.is_meta), None)
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
        self._example, self._kwargs = example, kwargs
        self.ends: Ends = ends_of(model, example, kwargs)
        self._chosen = sites_of(self.ends.sites, names, remedy)
        self._tensors = dict(model.named_parameters())
        self._refusals = Refusals(model, self.ends, self._chosen)

    def each(self) -> list[tuple[Site, End]]:
        """The sites to act on, with their ends."""
        return [(site, self.ends.at(site)) for site in self._chosen]

    def size(self, name: str) -> float:
        """Root of the mean square of a parameter's entries."""
        return _size(self._tensors[name])

    def refuse(self, site: Site, why: str) -> None:
        """Notes a reason, where there is one."""
        self._refusals.note(site, why)

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
                    changes.append(Change(site.name, name, before, _size(tensor)))
        return Account(self.remedy, tuple(changes))

    def prove_awake(self, account: Account) -> None:
        """Looks whether every branch is 0 and gets a gradient; else all is as before.

        In evaluation mode, where nothing is dropped at random.
        """
        with unchanged(self.model):
            self.model.eval()
            look = Look(self.model, self._example, self._kwargs, None)
        zero = look.zero()
        for site in self._chosen:
            key = site.module, site.source, site.occurrence
            if key in look.nonzero():
                self.refuse(site, "with its last weight at 0 the branch is not 0")
            elif zero.get(key, True) is False:
                self.refuse(site, "at 0 it gets no gradient: another factor of it is 0 as well")
        try:
            self.stop_if_refused()
        except ValueError:
            with torch.no_grad():
                for name, before in self._before.items():
                    self._tensors[name].copy_(before)
            raise

    def scale(self, alpha: float, learned: Learned) -> Account:
        """Hangs a factor on the module that each branch ends in."""
        changes, made = [], []
        for site, end in self.each():
            owner = owner_of(next(iter(end.parameters)))
            module = self.model.get_submodule(owner)
            weight = next(iter(module.parameters()))
            value = torch.full(_shape(module, learned), alpha, dtype=weight.dtype)
            value = value.to(weight.device)
            if learned == "no":
                module.register_buffer("branch_scale", value)
            else:
                module.branch_scale = nn.Parameter(value)
                made.append(module.branch_scale)
            module.register_forward_hook(_times_branch_scale)
            changes.append(Change(site.name, f"{owner}.branch_scale", 1.0, alpha))
        return Account(self.remedy, tuple(changes), tuple(made))


def _shape(module: nn.Module, learned: Learned) -> tuple[int, ...]:
    if learned != "channel":
        return ()
    if isinstance(module, nn.modules.conv._ConvNd):
        return (module.out_channels, *[1] * len(module.kernel_size))
    return (int(module.out_features),)  # type: ignore[arg-type]


def _times_branch_scale(module: nn.Module, args: object, output: Tensor) -> Tensor:
    """A hook of the module's own: copies and pickles take it along."""
    scale: Tensor = module.branch_scale  # type: ignore[assignment]
    return output * scale


def _size(tensor: Tensor) -> float:
    return float(tensor.detach().double().square().mean().sqrt())
