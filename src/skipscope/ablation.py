"""What a branch is worth: the loss with its F replaced by 0, against the loss as it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from skipscope.additions import Operations
from skipscope.example import check_model
from skipscope.find import Discovery, Found, SiteRegistry
from skipscope.find.node import version_of
from skipscope.records import Key, Site, SiteMap
from skipscope.restore import unchanged
from skipscope.selection import asked, chosen


@dataclass(frozen=True)
class Ablated:
    """The loss with the branch of one site, or of several, left out."""

    where: tuple[str, ...]  #: names of the sites
    loss: float  #: without these branches
    difference: float  #: that loss minus the loss as it is; above 0: the branches help


@dataclass(frozen=True)
class Ablation:
    """What leaving branches out does to the loss; `print` shows it as a table."""

    loss: float  #: with every branch
    sites: tuple[Ablated, ...]  #: one site each, by stream and depth, or in the order asked for
    together: Ablated | None = None  #: all these sites at once, where it was asked for

    def __str__(self) -> str:
        rows = [("branch left out", "loss", "difference"), ("none", f"{self.loss:.6g}", "")]
        rows += [(row.where[0], *_numbers(row)) for row in self.sites]
        if self.together is not None:
            rows.append((f"these {len(self.together.where)} together", *_numbers(self.together)))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        return "\n".join(
            f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}".rstrip()
            for row in rows
        )


def ablate(
    model: nn.Module,
    sites: str | int | Sequence[str | int] | None,
    closure: Callable[[], Tensor | float],
    *,
    together: bool = False,
    known: SiteMap | None = None,
) -> Ablation:
    """Measures how much the loss changes when the branch of a site is left out: y = shortcut.

    The closure runs once as it is, then once for each site; each run starts from the same random
    state and buffers. Afterwards random state, buffers, modes and `.grad` are as they were, and
    nothing is attached. It is no training step and needs no backward, but its forward needs
    gradients enabled (sites are found along autograd's graph), and so the memory of a training
    step. Several processes must all call it.

    Args:
        model: the model that the closure runs.
        sites: names, indices, or module paths (with `*` and `?`) or class names, each of which
            stands for the block-level sites inside; None: all block-level sites.
        closure: runs the model on one and the same batch at every call, and returns the loss. It
            must not step an optimizer.
        together: run once more with all these branches left out at once.
        known: the site map that names and indices refer to, `monitor.history.sites` for example;
            None: that of the first run.

    Raises:
        ValueError: no residual addition was seen; `sites` is empty, holds what is no site's, or a
            site that did not run; or the closure changed a parameter.
        TypeError: the closure returned no single number, or is no function; or `model` is no
            module.

    What the closure raises passes through.

    Example:
        >>> class Block(nn.Module):
        ...     def __init__(self, weight):
        ...         super().__init__()
        ...         self.fc = nn.Linear(1, 1, bias=False)
        ...         nn.init.constant_(self.fc.weight, weight)
        ...     def forward(self, x):
        ...         return x + self.fc(x)
        >>> net, x = nn.Sequential(Block(1.0), Block(3.0)), torch.ones(1, 1)
        >>> print(ablate(net, None, lambda: net(x).sum(), together=True))
        branch left out   loss  difference
        none                 8
        0                    4          -4
        1                    2          -6
        these 2 together     1          -7
    """
    check_model("ablate", model)
    names = asked("ablate", sites, indices=True)
    if not callable(closure):
        raise TypeError(
            f"ablate: closure must be a function that runs the model and returns the loss, got "
            f"{closure!r}"
        )
    versions = [version_of(parameter) for parameter in model.parameters()]
    whole = _Run(model, closure)
    if versions != [version_of(parameter) for parameter in model.parameters()]:
        raise ValueError(
            "ablate: the closure changed parameters of the model, so its losses do not compare; "
            "leave optimizer.step() out of it"
        )
    meant = _choose(known or whole.sites, whole, names)

    def without(off: Sequence[Site]) -> Ablated:
        loss = _Run(model, closure, {site.key for site in off}).loss
        return Ablated(tuple(site.name for site in off), loss, loss - whole.loss)

    rows = tuple(without([site]) for site in meant)
    return Ablation(whole.loss, rows, without(meant) if together else None)


class _Run:
    """One run of the closure with some branches left out."""

    def __init__(
        self,
        model: nn.Module,
        closure: Callable[[], Tensor | float],
        off: Collection[Key] = frozenset(),
    ) -> None:
        self._off = off
        discovery = self._discovery = Discovery(model, self._on_site)
        try:
            with unchanged(model), torch.enable_grad(), discovery.places, Operations(discovery):
                self.loss = _as_float(closure())
            self.unseen = discovery.observations.unseen
            self.passed = frozenset(discovery.found)
            self.sites = SiteRegistry().site_map(
                discovery.found.values(), self.unseen, discovery.places.called
            )
        finally:
            discovery.close()

    def _on_site(self, found: Found, s: Tensor, f: Tensor, run: Callable[[], Tensor]) -> Tensor:
        if found.key not in self._off:
            return run()
        kept = s.clone()  # an addition in place overwrites it
        if found.shortcut_factor != 1.0:
            kept = kept * found.shortcut_factor
        # The addition runs and its result is overwritten: so shape, dtype, and who else holds the
        # tensor of an addition in place stay, and later sites find this one where it always is.
        result = run()
        result.copy_(kept)
        if result.grad_fn is not None:
            found.sum_edge = self._discovery.graph.edge(result)
        return result


def _as_float(loss: object) -> float:
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return float(loss.detach())
    if isinstance(loss, (int, float)):
        return float(loss)
    shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
    raise TypeError(
        f"ablate: the closure must return the loss, one number, got {type(loss).__name__}{shape}"
    )


def _choose(known: SiteMap, run: _Run, names: Sequence[str | int] | None) -> tuple[Site, ...]:
    """The sites that are meant, each once; all of them ran.

    Raises:
        ValueError: there is none, or one did not run.
    """
    if not run.passed:
        blind = any(what == "no graph" for what, _, _ in run.unseen)
        why = "it ran under no_grad, where no site can be told" if blind else "none was called"
        raise ValueError(
            f"ablate: no residual addition of the model was seen in the closure: {why}"
        )
    meant = chosen(known, names, "ablate")
    if names is None:
        return tuple(site for site in meant if site.key in run.passed)
    for site in meant:
        if site.key not in run.passed:
            raise ValueError(f"ablate: site {site.name!r} is not added in the closure's forward")
    return meant


def _numbers(row: Ablated) -> tuple[str, str]:
    return f"{row.loss:.6g}", f"{row.difference:+.3g}"
