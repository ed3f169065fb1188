"""RES104: parameters that training leaves out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from skipscope.history import Table
from skipscope.names import counted
from skipscope.records import Parameter, Severity, SiteMap
from skipscope.rule import Gate, Hit, NotMeasurable, either, listed, rule, short
from skipscope.rule.parameter_rows import ParameterRows, as_places
from skipscope.rule.siblings import parameter_role, without_numbers

_HALF = ("float16", "bfloat16")

_NEVER = "a gradient in {steps} and never an update: {names}"
_NOTHING = "trainable, and no gradient in any of {steps}: {names}"
_FILTERED = """in no optimizer group: often a filter by name or shape, or a parameter made after the
optimizer"""
_MEANT = """whole blocks from the input on left out of the optimizer: if they are meant as frozen,
requires_grad = False also saves their backward"""
_CUT = """its module is called and what it computes does not reach the loss with a gradient:
no_grad, detach, an operation without gradient, or a result that nothing uses"""
_UNUSED = "outside of every branch, or never called, or the loss does not depend on it"

#: What is wrong: the message, and the cause.
_KINDS = {
    "in no optimizer group": (_NEVER + " in no optimizer group", _FILTERED),
    "left out from the input on": (_NEVER, _MEANT),
    "lr 0": (_NEVER + " in a group with lr 0", "a learning rate of 0 in its optimizer group"),
    "not moved": (_NEVER + ", though in an optimizer group", ""),
    "no gradient": (_NOTHING, _CUT),
    "unused": (_NOTHING, _UNUSED),
}


@rule(
    code="RES104",
    name="parameter-not-optimised",
    severity="warning",
    patience=1,
    explains_here=("RES403", "RES404"),
)
def parameter_not_optimised(
    parameters: tuple[Parameter, ...],
    gradient_norm: Table,
    lr: Table,
    sites: SiteMap,
    gate: Gate,
    update_norm: Table | None = None,
    weight_rms: Table | None = None,
    skipped: Table | None = None,
    grad_sum_norm: Table | None = None,
    *,
    real: int = 10,
    idle: int = 1000,
) -> Iterator[Hit]:
    """A trainable parameter that is never optimised.

    What it sees:
        Over all recorded optimizer steps with a learning rate above 0, `real` of them or more (a
        step that the optimizer skipped is none):

        * a parameter with a gradient in `real` steps and no update in any: it is in no optimizer
          group, or its group has learning rate 0, or the optimizer does not move it
        * a parameter that never has a gradient (none, which is not the same as a gradient of 0)
          although its module is called

        Parameters of a module that are all affected are named by the module's path. Whole blocks
        left out of the optimizer from the input on, or all blocks of a kind, look intended and are
        an information; so are parameters without gradient that lie outside of every block, whose
        module is never called, or whose block no backward reaches. A part that has siblings at
        work in its own block, like an expert without tokens, is an information after `idle` steps.

    Example:
        The update of one attention matrix of a pre-norm transformer of 12 blocks (24
        sites) over 36 steps, the matrix in no optimizer group (a point: no update was
        seen) and in one (`python -m benchmarks.faults.draw RES104 --seed 1`).

                     update by step                          first  largest     last
            sick     ····································     none     none     none
            healthy  █▇▆▅▅▅▄▄▄▄▄▃▃▃▃▃▃▃▃▃▃▃▃▃▃▂▃▃▃▃▃▃▃▃▂▃   0.0452   0.0452   0.0101
            scale    0 to 0.0452, linear
            found    gradients in 10 steps, and no update in any

    Why it matters:
        The loss falls all the same, because the rest of the net learns, and nothing else tells:
        eight gates of a ReZero net that fell between two parameter groups stayed at 0 for good
        with gradients of .003 to .125; a no_grad block meant for one scale cut the first layer of
        a branch off while r stayed at .44. The branch then works with weights of chance.
    What to try:
        * build the optimizer's groups from model.named_parameters() and compare their number with
          that of the trainable parameters
        * look in the block's forward for no_grad, detach, .data, argmax or rounding, and for a
          result that is computed and not used
        * set requires_grad = False on what is meant to be frozen
    When it is wrong:
        Frozen parameters are never named. A gradient of exactly 0 (the first factor of a
        zero-initialised branch, a key bias, an idle expert) is a gradient; one under a millionth
        of the usual size is taken for rounding. Updates too small for the weight's precision are
        left to RES402 and RES403. A parameter that another optimizer than those given to the
        monitor updates looks unoptimised: give the monitor all of them.
    Thresholds:
        * real: optimizer steps with a learning rate above 0
        * idle: steps after which a part whose siblings are at work is named
    Source:
        Parameters between groups: majumderb/rezero issue 16 (the symptom), namisan/mt-dnn PR 37.
        Cut off by no_grad: XiaLiPKU/EMANet issue 14. A wrong variable: hypnopump/keras-wrn PR 2.
        Frozen on purpose: facebookresearch/moco issue 14. The information about whole blocks left
        out is argued: a head that is trained alone through its own optimizer is common. Tried on
        reproductions of these cases and on 47 healthy runs (transformers, residual CNNs, adapters;
        AdamW and SGD): no warning, and three informations about norms and layers that these nets
        really never call.
    """
    needed = max(real, gate.patience)
    rows = ParameterRows.of(parameters, gradient_norm, update_norm, lr, skipped, needed)
    use = _Use.of(rows, sites, grad_sum_norm)
    yield from either(
        _without_update(rows, weight_rms, needed), _without_gradient(rows, use, needed, idle)
    )


@dataclass(frozen=True)
class _Use:
    """What of the model takes part at all."""

    rows: ParameterRows
    called: frozenset[str]  #: module paths; empty where there is no inventory
    dark: frozenset[str]  #: blocks that no backward ever reached
    working: frozenset[tuple[str, str]]  #: block and name of those with gradient

    @classmethod
    def of(cls, rows: ParameterRows, sites: SiteMap, reached: Table | None) -> _Use:
        called = frozenset(path for kind in sites.modules for path in kind.paths)
        dark: set[str] = set()
        if reached is not None:
            blind = {
                name for name, gone in zip(reached.columns, reached.missing.T, strict=True)
                if gone.all()
            }  # fmt: skip
            lit = {site.module for site in sites.sites if site.name not in blind}
            dark = {site.module for site in sites.sites if site.module} - lit
        some = np.logical_or.reduce(~np.isnan(rows.gradient), axis=0)
        working = frozenset(
            (p.block, _without_places(p.name))
            for p, seen in zip(rows.parameters, some, strict=True)
            if seen
        )
        return cls(rows, called, frozenset(dark), working)

    def never_called(self, parameter: Parameter) -> bool:
        owner = parameter.name.rpartition(".")[0]
        return bool(self.called) and bool(owner) and owner not in self.called

    def in_the_dark(self, parameter: Parameter) -> bool:
        return any(parameter.name.startswith(f"{block}.") for block in self.dark)

    def idle_sibling(self, parameter: Parameter) -> bool:
        """Whether an equal part of the same block is at work: experts."""
        return (parameter.block, _without_places(parameter.name)) in self.working


def _without_places(name: str) -> str:
    """A name without its positions in lists: equal for the experts of one block.

    >>> _without_places("h.3.experts.7.fc1.weight")
    'h.#.experts.#.fc1.weight'
    """
    return ".".join("#" if part.isdigit() else part for part in name.split("."))


def _without_update(rows: ParameterRows, weights: Table | None, real: int) -> Iterator[Hit]:
    trainable = [p for p in rows.parameters if p.trainable]
    if not any(p.group is not None for p in trainable):
        raise NotMeasurable("no optimizer that the monitor knows holds a parameter of this model")
    moved = rows.ever(rows.update)
    found = {
        p.name: kind
        for p in trainable
        if not moved[rows.at[p.name]]
        and (kind := _why_still(rows, p, weights))
        and int(rows.with_gradient(p).sum()) >= real
    }
    meant = _from_the_input(trainable, found)
    named = {
        p: "left out from the input on" if p.name in meant else found[p.name]
        for p in trainable
        if p.name in found
    }
    yield from _together(rows, named, "an update in every step with a gradient")


def _why_still(rows: ParameterRows, parameter: Parameter, weights: Table | None) -> str:
    """Why a parameter never moves, empty where that is not known."""
    if parameter.group is None:
        return "in no optimizer group"
    if parameter.group < rows.taken.shape[1] and not rows.taken[:, parameter.group].any():
        return "lr 0"
    update = rows.column(rows.update, parameter)[rows.with_gradient(parameter)]
    if not len(update) or np.isnan(update).all():
        return ""
    rounded = parameter.dtype in _HALF or _rounds(rows, parameter, weights)
    return "" if rounded else "not moved"


def _rounds(rows: ParameterRows, parameter: Parameter, weights: Table | None) -> bool:
    """Whether lr times the gradient, or lr itself, can get lost in a float32 weight."""
    if weights is None or parameter.name not in weights.columns or parameter.group is None:
        return True
    known = weights.values[:, weights.columns.index(parameter.name)]
    weight = float(np.nanmax(known)) if np.isfinite(known).any() else 0.0
    size = np.sqrt(max(math.prod(parameter.shape), 1))
    gradient = np.nanmedian(rows.column(rows.gradient, parameter)) / size
    rate = float(np.nanmax(rows.rates[:, parameter.group]))
    return rate * min(float(gradient), 1.0) < 2.0**-20 * weight


def _from_the_input(trainable: Sequence[Parameter], found: dict[str, str]) -> set[str]:
    """Of what is left out, what looks meant: whole blocks from the first on, and what is outside.

    Blocks are taken by kind (their paths without numbers).
    """
    blocks: dict[str, list[Parameter]] = {}
    for p in trainable:
        if _home(p):
            blocks.setdefault(_home(p), []).append(p)
    open_kinds: dict[str, bool] = {}
    meant: set[str] = set()
    for block, members in blocks.items():
        kind = without_numbers(block)
        left_out = all(p.name in found for p in members) and open_kinds.get(kind, True)
        open_kinds[kind] = left_out
        meant |= {p.name for p in members} if left_out else set()
    if meant:
        meant |= {p.name for p in trainable if not _home(p) and p.name in found}
    return meant


def _home(parameter: Parameter) -> str:
    """Its block; its site where one module makes all the additions; empty outside of both."""
    return parameter.block or (f"site {parameter.sites[0]}" if parameter.sites else "")


def _without_gradient(rows: ParameterRows, use: _Use, real: int, idle: int) -> Iterator[Hit]:
    named: dict[Parameter, str] = {}
    inside = {without_numbers(p.name) for p in rows.parameters if _home(p)}
    nothing = np.logical_and.reduce(np.isnan(rows.gradient), axis=0)
    for p in rows.parameters:
        if not p.trainable or not nothing[rows.at[p.name]] or int(rows.stepped(p).sum()) < real:
            continue
        branch = bool(_home(p)) or without_numbers(p.name) in inside
        if branch and use.never_called(p) and use.idle_sibling(p):
            if rows.steps[-1] >= idle:
                named[p] = "unused"
        elif not branch or use.never_called(p) or use.in_the_dark(p):
            named[p] = "unused"
        else:
            named[p] = "no gradient"
    yield from _together(rows, named, "a gradient in every step (a trainable parameter)")


def _together(rows: ParameterRows, named: dict[Parameter, str], expectation: str) -> Iterator[Hit]:
    """One hit for all parameters with the same fault."""
    for kind in dict.fromkeys(named.values()):
        chosen = [p for p, why in named.items() if why == kind]
        places = as_places(chosen, rows.parameters)
        severity: Severity | None = (
            "info" if kind in ("unused", "left out from the input on") else None
        )
        gradients = [rows.column(rows.gradient, p) for p in chosen]
        largest = max((float(np.nanmax(g)) for g in gradients if not np.isnan(g).all()), default=0)
        message, cause = _KINDS[kind]
        yield Hit(
            where=places,
            value=largest,
            expectation=expectation,
            message=message.format(steps=counted(len(rows.steps), "step"), names=listed(places))
            + (f", gradient up to {short(largest)}" if largest else ""),
            first_step=int(rows.steps[0]),
            last_step=int(rows.steps[-1]),
            severity=severity,
            evidence={
                "kind": kind,
                "parameters": float(len(chosen)),
                "roles": listed(dict.fromkeys(parameter_role(p) for p in chosen)),
                "largest gradient": largest,
            },
            cause=" ".join(cause.split()),
        )
