"""RES404: weights that move although no gradient moves them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Parameter
from skipscope.rule import Gate, Hit, listed, rule, short
from skipscope.rule.parameter_rows import ParameterRows, as_places


@rule(
    code="RES404",
    name="changing-without-gradient",
    severity="warning",
    patience=3,
)
def changing_without_gradient(
    parameters: tuple[Parameter, ...],
    gradient_norm: Table,
    update_norm: Table,
    lr: Table,
    gate: Gate,
    weight_norm: Table | None = None,
    skipped: Table | None = None,
    *,
    real: int = 10,
) -> Iterator[Hit]:
    """A parameter without gradient, or a frozen one, that the optimizer moves all the same.

    What it sees:
        At the recorded optimizer steps with a learning rate above 0:

        * a frozen parameter (requires_grad = False) that the optimizer's step changed in the last
          `patience` of them with a tenth of the largest learning rate or more
        * a trainable parameter that had no gradient other than exactly 0 in any of them, `real` of
          them or more, and that the step changed in `real` of them

    Example:
        The update of one frozen attention matrix of a pre-norm transformer of 12
        blocks (24 sites) over 36 steps, held by AdamW with weight decay .01 and in no
        optimizer group (a point: no update was seen)
        (`python -m benchmarks.faults.draw RES404 --seed 1`).

                     update by step                          first  largest     last
            sick     ████████████████████████████████████  3.2e-05  3.2e-05  3.2e-05
            healthy  ····································     none     none     none
            scale    0 to 3.2e-05, linear
            found    a frozen weight that moved in 3 steps

    Why it matters:
        Weight decay shrinks whatever the optimizer holds and finds a gradient tensor on, and
        momentum goes on pushing after the gradient has ended. A backbone that is meant to stay as
        it was loaded then fades by lr * decay a step, and a layer that is cut off from the loss
        loses its initialisation.
    What to try:
        * give the optimizer only parameters with requires_grad, or take frozen ones out of it
        * set gradients to None when freezing (zero_grad does by default): a zero is a gradient to
          weight decay and momentum
        * if the parameter should learn, find out why its gradient is 0 (RES103, RES104)
    When it is wrong:
        Only what the optimizer's own step does is seen: averages of weights, teacher copies,
        merges of adapters and swaps for evaluation happen outside of it and are silent. Experts
        without tokens keep moving by momentum, but they had a gradient once and are silent too, as
        is a bias without effect (of attention keys, before a norm) whose weight has a gradient.
    Thresholds:
        * real: optimizer steps without gradient for a trainable parameter
    Source:
        torch.optim skips parameters whose gradient is None and treats a gradient of 0 like any
        other. Shrinking without gradient was measured in a ReZero net whose gates were never
        updated (its case comes from majumderb/rezero issue 16): the branch weights moved by .5 %
        in 50 AdamW steps by decay alone. Argued otherwise.
    """
    rows = ParameterRows.of(parameters, gradient_norm, update_norm, lr, skipped, gate.patience)
    frozen, cut_off = [], []
    some = rows.ever(rows.gradient)
    alive = {_owner(p) for p, shown in zip(parameters, some, strict=True) if shown}
    for p in parameters:
        if p.trainable and some[rows.at[p.name]]:
            continue
        update = np.nan_to_num(rows.column(rows.update, p))
        if not p.trainable:
            measured = update[~np.isnan(rows.column(rows.update, p)) & _at_speed(rows, p)]
            if len(measured) >= gate.patience and (measured[-gate.patience :] > 0).all():
                frozen.append(p)
        elif _owner(p) in alive and len(p.shape) == 1:
            continue
        elif (update > 0).sum() >= real:
            cut_off.append(p)
    for chosen, what in ((frozen, "frozen"), (cut_off, "without gradient")):
        if chosen:
            yield _hit(rows, chosen, what, weight_norm)


def _hit(rows: ParameterRows, chosen: list[Parameter], what: str, weights: Table | None) -> Hit:
    places = as_places(chosen, rows.parameters)
    moves = np.array([_without_gradient(rows, p) for p in chosen])
    largest = float(moves.max())
    moved = rows.steps[(moves > 0).any(axis=0)]
    fading = _fading(chosen, weights)
    return Hit(
        where=places,
        value=largest,
        expectation="no change in an optimizer step",
        message=f"{what}, and changed by {len(moved)} of {len(rows.steps)} optimizer steps: "
        f"{listed(places)}, by up to {short(largest)} a step",
        first_step=int(moved[0]),
        last_step=int(moved[-1]),
        evidence={"kind": what, "parameters": float(len(chosen)), "largest update": largest},
        cause="weight decay: the weights shrink" if fading else "",
    )


def _at_speed(rows: ParameterRows, parameter: Parameter) -> npt.NDArray[np.bool_]:
    """Steps with a tenth of the largest learning rate or more: below, decay is lost in rounding."""
    if parameter.group is None:
        return np.ones(len(rows.steps), dtype=bool)
    rate = rows.rates[:, parameter.group]
    fast: npt.NDArray[np.bool_] = rate >= 0.1 * rate.max()
    return fast


def _owner(parameter: Parameter) -> str:
    """The module that holds it."""
    return parameter.name.rpartition(".")[0]


def _without_gradient(rows: ParameterRows, parameter: Parameter) -> npt.NDArray[np.float64]:
    """The updates in steps without gradient, 0 elsewhere; all of them where it is a stale one."""
    update = np.nan_to_num(rows.column(rows.update, parameter))
    idle = np.nan_to_num(rows.column(rows.gradient, parameter)) == 0
    return np.where(idle, update, 0.0) if (update[idle] > 0).any() else update


def _fading(chosen: list[Parameter], weights: Table | None) -> bool:
    """Whether the weights' norms fall."""
    if weights is None:
        return False
    norms = weights.values[:, [weights.columns.index(p.name) for p in chosen]]
    known = [column[~np.isnan(column)] for column in norms.T]
    return all(len(column) > 1 and column[-1] < column[0] for column in known)
