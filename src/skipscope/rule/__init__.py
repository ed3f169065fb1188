"""A rule: a generator of hits, its gates, and the inputs it may ask for by parameter name.

A rule's positional parameters name what it reads: a measure (it gets the `Table`) or one of
`FACTS`; one with the default None is optional. Its keyword-only parameters are its thresholds.
It yields a `Hit` per finding or raises `NotMeasurable`; a rule of several arms joins them with
`either`. `Rule.run` takes plain values, so a test writes them down: no files, no run.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from skipscope.measures import MEASURES
from skipscope.names import counted, near
from skipscope.records import Severity
from skipscope.rule import docs as rule_docs
from skipscope.rule.arms import either, leaving_out
from skipscope.rule.docs import wrapped
from skipscope.rule.gates import Gate, NotMeasurable, Streak, Warmup, after_warmup, deep_enough
from skipscope.rule.inputs import FACTS, Inputs
from skipscope.rule.siblings import Stage

__all__ = [
    "FACTS",
    "Gate",
    "Hit",
    "Inputs",
    "NotMeasurable",
    "Rule",
    "Stage",
    "Streak",
    "Warmup",
    "either",
    "listed",
    "rule",
    "short",
]


@dataclass(frozen=True)
class Hit:
    """What one arm of a rule saw at one place; the framework makes it a finding."""

    where: tuple[str, ...]  #: sites, module or parameter paths, or ("model",)
    value: float  #: the number that crossed the threshold
    expectation: str  #: what was expected of it, and its law
    message: str  #: one sentence, with the number
    first_step: int
    last_step: int
    severity: Severity | None = None  #: None: that of the rule
    evidence: Mapping[str, float | str] = field(default_factory=dict)
    cause: str = ""
    advice: tuple[str, ...] = ()  #: empty: the first three of the docstring's "What to try"
    #: it stands as long as the rule yields it, whatever later steps show: about a run's start, or
    #: about events that the rule itself forgets in time
    stands: bool = False


@dataclass(frozen=True)
class Rule:
    """One rule: its identity, its gates, and the function that looks."""

    code: str
    name: str
    severity: Severity
    patience: int  #: captures in a row
    min_steps: int  #: steps the run must have
    after_warmup: bool  #: captures before the end of warm-up do not count
    needs_sites: int  #: sites in at least one stage
    initial_only: bool  #: looks at step 0 of a fresh run only
    explains: tuple[str, ...]  #: codes whose findings at or after a place of ours follow from it
    explains_overall: tuple[str, ...]  #: the same for findings about a whole stream or model
    explains_here: tuple[str, ...]  #: codes whose findings follow only at the very same sites
    whole_stream: bool  #: its findings concern a whole stream, whatever sites they name
    function: Callable[..., Iterable[Hit]]
    inputs: tuple[str, ...]
    optional: frozenset[str]
    thresholds: Mapping[str, float]
    signed: tuple[str, ...]  #: thresholds of what can be negative: a cosine, a slope, a logarithm

    @property
    def doc(self) -> str:
        """The docstring."""
        return self.function.__doc__ or ""

    @property
    def title(self) -> str:
        """One line that says what the rule finds."""
        return rule_docs.title(self.doc)

    @property
    def advice(self) -> tuple[str, ...]:
        """At most three things to try."""
        return rule_docs.advice(self.doc)

    def explain(self, width: int = 100) -> str:
        """The text of `skipscope explain`, in lines of at most so many columns."""
        parts = [(f"{self.code} {self.name} ({self.severity})", f"{self.title}.")]
        parts += {**rule_docs.sections(self.doc), "Thresholds": self._thresholds()}.items()
        return "\n\n".join(f"{head}\n{wrapped(text, width)}" for head, text in parts) + "\n"

    @property
    def defaults(self) -> dict[str, float]:
        """What can be set of the rule, with its values: thresholds, then gates."""
        return {**self.thresholds, "patience": self.patience, "min_steps": self.min_steps}

    def _thresholds(self) -> str:
        text = rule_docs.sections(self.doc)["Thresholds"]
        each = rule_docs.thresholds(text, self.defaults)
        items = [f"* {name} ({value:g}): {meaning}" for name, value, meaning in each]
        return "\n".join(items if self.thresholds else [text, "", *items])

    def run(self, values: Mapping[str, Any] | Inputs, **overrides: float) -> tuple[Hit, ...]:
        """Look.

        Args:
            values: input names to values, or `Inputs`.
            overrides: thresholds, and the gates `patience` and `min_steps`.

        Raises:
            NotMeasurable: an input or a gate's condition is absent.
            ValueError: no such threshold.
        """
        return self.look(values, **overrides)[0]

    def look(
        self, values: Mapping[str, Any] | Inputs, **overrides: float
    ) -> tuple[tuple[Hit, ...], tuple[str, ...]]:
        """`run`, and why arms of the rule could not look while others did."""
        ours = self.with_overrides(overrides)
        inputs = values if isinstance(values, Inputs) else Inputs(values)
        gate = ours.gate(inputs)
        given = [
            gate if name == "gate" else inputs.get(name) if name in self.optional else inputs[name]
            for name in self.inputs
        ]
        with leaving_out() as reasons:
            return tuple(self.function(*given, **ours.thresholds)), tuple(dict.fromkeys(reasons))

    def with_overrides(self, overrides: Mapping[str, float]) -> Rule:
        """This rule with other thresholds.

        Raises:
            ValueError: no such threshold, naming those that come near; a value that is no finite
                number, is negative where what is measured cannot be, or is no whole one where the
                threshold counts something.
        """
        if not overrides:
            return self
        known = self.defaults
        for name in overrides:
            if name not in known:
                raise ValueError(
                    f"thresholds: {self.code} has no threshold {name!r} (`skipscope explain "
                    f"{self.code}` lists them){near(str(name), known)}"
                )
        checked = {name: self._checked(name, known[name], overrides[name]) for name in overrides}
        chosen = {name: checked.get(name, value) for name, value in self.thresholds.items()}
        patience, min_steps = (
            int(checked.get(name, known[name])) for name in ("patience", "min_steps")
        )
        return replace(self, thresholds=chosen, patience=patience, min_steps=min_steps)

    def _checked(self, name: str, default: float, value: object) -> float:
        """A value for a threshold; one whose default is a whole number counts something."""
        number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        given = float(cast("float", value)) if number else math.nan
        counts = isinstance(default, int)
        signed = name in self.signed
        if math.isfinite(given) and (signed or given >= 0):
            if not counts:
                return given
            if given.is_integer():
                return int(given)
        wanted = f"{'whole' if counts else 'finite'} number{'' if signed else ' of 0 or more'}"
        raise ValueError(
            f"thresholds: {name!r} of {self.code} must be a {wanted}, got {value!r} "
            f"(its default is {default}; to keep the rule quiet, `ignore` it)"
        )

    def gate(self, inputs: Inputs) -> Gate:
        """Check the gates of the whole rule.

        Raises:
            NotMeasurable: one of them is closed.
        """
        if self.needs_sites:
            deep_enough(inputs["stages"], self.needs_sites)
        if self.initial_only and not (inputs["run"].fresh and 0 in inputs["captures"]):
            raise NotMeasurable("needs a capture of step 0 of a fresh run")
        if self.min_steps:
            last = int(np.max(inputs["captures"], initial=0))
            if last < self.min_steps:
                raise NotMeasurable(f"needs {counted(self.min_steps, 'step')}, has {last}")
        start = after_warmup(inputs["warmup"]) if self.after_warmup else 0
        return Gate(self.patience, start)


def rule(
    *,
    code: str,
    name: str,
    severity: Severity = "warning",
    patience: int = 3,
    min_steps: int = 0,
    after_warmup: bool = False,
    needs_sites: int = 0,
    initial_only: bool = False,
    explains: tuple[str, ...] = (),
    explains_overall: tuple[str, ...] = (),
    explains_here: tuple[str, ...] = (),
    whole_stream: bool = False,
    signed: tuple[str, ...] = (),
) -> Callable[[Callable[..., Iterable[Hit]]], Rule]:
    """Declare a rule: the gates above a generator of hits, and the thresholds that have a sign.

    Raises:
        TypeError: a positional parameter is no known input, a threshold has no default, or a
            negative one that is not in `signed`, or there is none of a name in `signed`.
        ValueError: the docstring lacks a heading.
    """

    def declare(function: Callable[..., Iterable[Hit]]) -> Rule:
        inputs, optional, thresholds = _signature(code, function)
        _check_signed(code, thresholds, signed)
        rule_docs.sections(function.__doc__ or "")
        return Rule(
            code, name, severity, patience, min_steps, after_warmup, needs_sites, initial_only,
            explains, explains_overall, explains_here, whole_stream, function, inputs, optional,
            thresholds, signed,
        )  # fmt: skip

    return declare


def _signature(
    code: str, function: Callable[..., Iterable[Hit]]
) -> tuple[tuple[str, ...], frozenset[str], dict[str, float]]:
    """The inputs of a rule function, which of them are optional, and its thresholds."""
    inputs, optional, thresholds = [], set(), {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.default is parameter.empty:
                raise TypeError(f"{code}: threshold {name!r} has no default")
            thresholds[name] = parameter.default
            continue
        known = {*FACTS, *MEASURES}
        if name not in known:
            raise TypeError(f"{code}: no measure or fact is named {name!r}{near(name, known)}")
        inputs.append(name)
        if parameter.default is None:
            optional.add(name)
    return tuple(inputs), frozenset(optional), thresholds


def _check_signed(code: str, thresholds: Mapping[str, float], signed: tuple[str, ...]) -> None:
    for name in signed:
        if name not in thresholds:
            raise TypeError(f"{code}: no threshold {name!r} to be signed{near(name, thresholds)}")
    for name, default in thresholds.items():
        if default < 0 and name not in signed:
            raise TypeError(f"{code}: threshold {name!r} is {default}, so name it in signed")


def short(value: float) -> str:
    """A number with three digits.

    >>> short(34.04), short(0.00751), short(4.8e11)
    ('34.0', '0.00751', '4.8e+11')
    """
    text = f"{value:#.3g}" if 1e-3 <= abs(value) < 1e3 else f"{value:.3g}"
    return text.rstrip(".")


def listed(names: Iterable[str], most: int = 4) -> str:
    """Names for a sentence, the middle left out when they are many.

    >>> listed(["a", "b", "c", "d", "e", "f"])
    'a, b, c ... f (6)'
    """
    every = list(names)
    if len(every) <= most:
        return ", ".join(every)
    return f"{', '.join(every[: most - 1])} ... {every[-1]} ({len(every)})"
