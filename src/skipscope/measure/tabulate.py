"""Measures to tables: hand a formula its arrays, and tell what is missing in what comes out.

The one rule of missing values: *a NaN that comes out although every measured number that went in
is finite means missing*. So 0/0 is undefined and therefore missing, x/0 is infinity and a result,
and a NaN in the network itself stays a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from skipscope.history import History, Table
from skipscope.measure import PARAMETER_NEEDS, SITE_NEEDS, Floats, Measure
from skipscope.measure.chains import chains
from skipscope.records import FACTS, PARAMETER_SUMS, Parameter

Mask = npt.NDArray[np.bool_]

#: A field that a capture cannot always form (shapes differ, no row to take a median of), or that an
#: earlier release did not keep: NaN there while these others are finite means missing.
_FORMED_FROM: Mapping[str, tuple[str, ...]] = {
    "influence": ("xx", "yy"),
    "channel": ("yy",),
    "row_cosine": ("yy",),
    "row_pairs": ("yy",),
    "r_median": ("ss", "ff"),
    "gxy": ("gx", "gy"),
}


class _Input(NamedTuple):
    """An array for a function; NaN where missing."""

    values: npt.NDArray[Any]
    missing: Mask | None  #: None: it is known everywhere


def compute(measure: Measure, history: History) -> Table:
    """Apply a measure to a history."""
    steps, columns, values, missing = _AXES[measure.axis](measure, history)
    values = np.where(missing, np.nan, values)
    values.flags.writeable = missing.flags.writeable = False  # tables are shared
    return Table(measure.name, measure.unit, measure.label, steps, columns, values, missing)


def _evaluate(function: Callable[..., Any], inputs: Mapping[str, _Input]) -> tuple[Floats, Mask]:
    """What the function returns, and where that is missing (the module's one rule)."""
    with np.errstate(all="ignore"):
        values = np.asarray(function(**{name: i.values for name, i in inputs.items()}), float)
        missing = np.isnan(values)
        if missing.any():
            finite = {name: _finite(*given) for name, given in inputs.items()}
            missing &= np.isnan(np.asarray(function(**finite), float))
    return values, missing


def _finite(values: npt.NDArray[Any], missing: Mask | None) -> npt.NDArray[Any]:
    """The same with some finite number for each measured one that is not."""
    if missing is None:
        return values
    return np.where(missing | np.isfinite(values), values, 1.0)


_Result = tuple[npt.NDArray[np.int64], tuple[str, ...], Floats, Mask]


def _site_input(history: History, name: str) -> _Input:
    if name == "kind":
        return _Input(np.array([site.kind for site in history.sites.sites]), None)
    values = history.field(name)
    need = SITE_NEEDS[name]
    missing = (history.have & need) != need
    if name in _FORMED_FROM and np.isnan(values).any():
        others = [np.isfinite(history.field(other)) for other in _FORMED_FROM[name]]
        missing |= np.isnan(values) & np.logical_and.reduce(others)
    return _Input(np.where(missing, np.nan, values), missing)


def _by_site(measure: Measure, history: History) -> _Result:
    inputs = {name: _site_input(history, name) for name in measure.inputs}
    values, missing = _evaluate(measure.function, inputs)
    return history.capture_steps, tuple(s.name for s in history.sites.sites), values, missing


def _by_chain(measure: Measure, history: History) -> _Result:
    """A stream or stage with fewer than two sites has no profile: missing."""
    held = chains(history.sites, by_stage=measure.axis == "stage")
    whole = {name: _site_input(history, name) for name in measure.inputs if name != "counted"}
    values = np.full((len(history.capture_steps), len(held)), np.nan)
    missing = np.ones(values.shape, bool)
    for column, chain in enumerate(held):
        if len(chain.sites) < 2:
            continue
        at = list(chain.sites)
        inputs = {
            name: _Input(
                given.values[:, at], None if given.missing is None else given.missing[:, at]
            )
            for name, given in whole.items()
        }
        if "counted" in measure.inputs:
            inputs["counted"] = _Input(np.array(chain.counted), None)
        values[:, column], missing[:, column] = _evaluate(measure.function, inputs)
    return history.capture_steps, tuple(chain.name for chain in held), values, missing


def _fan_in(parameter: Parameter) -> int:
    """Inputs of one output; a vector scales elements one by one: 1."""
    return math.prod(parameter.shape[1:]) or 1


def _parameter_values(history: History, name: str) -> Floats:
    at = {field.name: position for position, field in enumerate(PARAMETER_SUMS)}
    if name != "reference":
        values: Floats = history.updates[:, :, at[name]]
        return values
    per_fan_in = 1.0 / np.array([_fan_in(parameter) for parameter in history.parameters], float)
    numel, squares = history.updates[:, :, at["n"]], history.updates[:, :, at["ww"]]
    reference: Floats = np.maximum(squares, 0.01 * numel * per_fan_in)
    return reference


def _unmeasured(history: History, need: int) -> Mask:
    missing: Mask = (history.update_have & need) != need
    return missing


def _by_parameter(measure: Measure, history: History) -> _Result:
    inputs = {}
    for name in measure.inputs:
        missing = _unmeasured(history, PARAMETER_NEEDS[name])
        inputs[name] = _Input(np.where(missing, np.nan, _parameter_values(history, name)), missing)
    values, missing = _evaluate(measure.function, inputs)
    return history.update_steps, tuple(p.name for p in history.parameters), values, missing


def _by_group(measure: Measure, history: History) -> _Result:
    """A parameter counts where everything that the measure needs of it was measured."""
    members = _blocks(history) if measure.axis == "block" else _branches(history)
    need = 0
    for name in measure.inputs:
        need |= PARAMETER_NEEDS[name]
    unmeasured = _unmeasured(history, need)
    rows = len(history.update_steps)
    none = [unmeasured[:, at].all(axis=1) for at in members.values()]
    missing = np.array(none, bool).reshape(len(members), rows).T
    inputs = {}
    for name in measure.inputs:
        held = np.where(unmeasured, 0.0, _parameter_values(history, name))
        sums = [held[:, at].sum(axis=1) for at in members.values()]
        total = np.array(sums, float).reshape(len(members), rows).T
        inputs[name] = _Input(np.where(missing, np.nan, total), missing)
    values, missing = _evaluate(measure.function, inputs)
    return history.update_steps, tuple(members), values, missing


def _blocks(history: History) -> dict[str, list[int]]:
    members: dict[str, list[int]] = {}
    for parameter in history.parameters:
        if parameter.block:
            members.setdefault(parameter.block, []).append(parameter.index)
    return members


def _branches(history: History) -> dict[str, list[int]]:
    members: dict[int, list[int]] = {site.index: [] for site in history.sites.sites}
    for parameter in history.parameters:
        for site in set(parameter.sites) & members.keys():
            members[site].append(parameter.index)
    return {site.name: members[site.index] for site in history.sites.sites}


def _by_step(measure: Measure, history: History) -> _Result:
    inputs = {}
    for name in measure.inputs:
        values = history.facts[:, len(FACTS) :] if name == "lr" else history.fact(name)
        missing = _loss_unknown(history) if name == "loss" else np.isnan(values)
        inputs[name] = _Input(values, missing)
    values, missing = _evaluate(measure.function, inputs)
    columns: tuple[str, ...] = (measure.name,)
    if values.ndim == 2:
        columns = tuple(f"{measure.name}.{group}" for group in range(values.shape[1]))
    shape = (len(values), len(columns))
    return (
        history.fact("step").astype(np.int64),
        columns,
        values.reshape(shape),
        missing.reshape(shape),
    )


def _loss_unknown(history: History) -> Mask:
    """Where the loss is NaN because nobody saw it, rather than because the run broke.

    A captured step sees its loss; so NaN there is a result, once any loss was seen and unless the
    step was skipped.
    """
    loss = history.fact("loss")
    seen = (history.fact("captured") == 1) & (history.fact("skipped") != 1)
    unknown: Mask = np.isnan(loss) & ~(seen & np.logical_or.accumulate(np.isfinite(loss)))
    return unknown


_AXES: Mapping[str, Callable[[Measure, History], _Result]] = {
    "site": _by_site,
    "stream": _by_chain,
    "stage": _by_chain,
    "parameter": _by_parameter,
    "block": _by_group,
    "branch": _by_group,
    "step": _by_step,
}
