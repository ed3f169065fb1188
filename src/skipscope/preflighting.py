"""A look at a model before it trains: one forward, one backward, and the rules for a start."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from skipscope.diagnose import diagnose
from skipscope.example import check_model
from skipscope.history import History
from skipscope.look import Look, Still
from skipscope.options import Options
from skipscope.recorder import Recorder
from skipscope.records import Diagnosis, Finding, Key, Site
from skipscope.rule import listed, short
from skipscope.rule.dead_advice import dead_advice, is_bias
from skipscope.rules import RULES
from skipscope.runs import describe_run
from skipscope.theory import expected_budget

Verdict = Literal["identity", "near", "within its law", "far", "post-norm", "unknown"]

#: Rules that one capture at the start can tell something to; they ask for no patience here.
CODES = (
    "RES101", "RES105", "RES201", "RES205", "RES206", "RES301", "RES304", "RES501", "RES502",
    "RES503", "RES504", "RES505", "RES506", "RES507", "RES901", "RES902",
)  # fmt: skip
#: A stage with branches times 1/sqrt(L), the classic scaled start, has a budget of 1 at most.
NEAR = 1.0

INDENT = " " * 11  #: of the report's own lines


@dataclass(frozen=True)
class Start:
    """How one stream starts."""

    stream: int
    verdict: Verdict
    ratios: tuple[float, ...]  #: r of its sites along depth, NaN where not measured
    budget: float  #: B, sum of ln(1 + r^2) without the first site of each stage; NaN: none counts
    law: float  #: B under the linear law, ln(1 + L) over its stages
    limit: float  #: B up to which it is within its law: that of RES105, over its stages
    growth: float  #: RMS after the last site / before the first
    half_depth_growth: float  #: H
    gradient_ratio: float  #: G, gradient at the first sum / at the last

    def __str__(self) -> str:
        numbers = (
            f"growth x{short(self.growth)}, H {short(self.half_depth_growth)}; gradient at first "
            f"/ last sum G {short(self.gradient_ratio)}"
        )
        return f"{_IN_WORDS[self.verdict].format(start=self, **_told(self))}\n{numbers}"


_IN_WORDS: Mapping[Verdict, str] = {
    "identity": "the identity: r 0 at all {count} sites",
    "near": "near the identity: r {low} to {high}, B {budget}, up to {near}",
    "within its law": "within its law: r {low} to {high}, B {budget}, up to {limit}; ln(1+L) is "
    "{law}",
    "far": "far from the identity: r {low} to {high}, B {budget}, above {limit}; ln(1+L) is {law}",
    "post-norm": "post-norm, the norm restores the scale: r {low} to {high}",
    "unknown": "r {low} to {high}; too few sites for B",
}


@dataclass(frozen=True)
class Preflight:
    """What one forward and backward say of a model that has not trained yet."""

    history: History  #: one capture, at step 0; weights and gradients in its update row
    diagnosis: Diagnosis
    streams: tuple[Start, ...]
    asleep: tuple[str, ...]  #: sites whose branch is 0 and gets no gradient: it cannot wake up
    zero: tuple[str, ...]  #: sites whose branch is 0 and gets a gradient: it wakes at once
    unused: tuple[str, ...]  #: trainable parameters that the backward did not reach at all
    gradient: str  #: where the gradient came from, in words
    mode: Literal["training", "evaluation"]  #: of the model

    @property
    def ok(self) -> bool:
        """No warning and no error."""
        return not self.diagnosis.count("warning", "error")

    def report(self, *, width: int = 80, color: bool = False, unicode: bool = True) -> str:
        """The start in words, then the findings and the profile along depth."""
        from skipscope.reports import REPORTS  # rich is not loaded until a report is wanted

        settings: dict[str, Any] = {"width": width, "color": color, "unicode": unicode}
        lines = [
            textwrap.fill(
                text, max(width, 70), initial_indent=f"{label:<10} ", subsequent_indent=INDENT
            )
            for label, text in self._lines()
        ]
        return "\n".join([*lines, "", REPORTS["console"](self.history, self.diagnosis, **settings)])

    def __str__(self) -> str:
        return self.report()

    def _lines(self) -> Iterator[tuple[str, str]]:
        yield "preflight", f"{self.history.run.model} in {self.mode} mode, before any step"
        yield "gradient", self.gradient
        if not self.streams:
            yield "start", "no residual addition was found"
        for start in self.streams:
            name = "start" if len(self.streams) == 1 else f"stream {start.stream}"
            first, second = str(start).splitlines()
            yield from ((name, first), ("", second))
        if self.zero:
            yield "zero-init", f"{listed(self.zero)}: r 0, with a gradient: wakes at the first step"
        if self.asleep:
            yield "asleep", f"{listed(self.asleep)}: r 0, without a gradient: never wakes"
        if self.unused:
            yield "unused", f"{listed(self.unused)}: trainable, and no part of what was looked at"


def preflight(
    model: nn.Module,
    *example: Any,
    loss_fn: Callable[[Any], Tensor] | None = None,
    **kwargs: Any,
) -> Preflight:
    """Looks at the start of a training before it begins, by one forward and one backward.

    It says how far from the identity each stream starts, how stream and gradient grow, which
    branches start at 0 and can never wake up, and what the rules say of the structure. The model
    runs in its present mode; call `train()` before. Afterwards random state, buffers, modes and
    `.grad` are as they were, nothing is attached, and no optimizer is needed.

    Without `loss_fn` the backward starts from a fixed random gradient of norm 1 at the output (its
    first floating tensor that has a gradient; a single number is taken for the loss). Ratios of
    gradients mean the same then, but a loss may give another direction.

    Where a branch is 0 and none of its own parameters gets a gradient, one more forward in
    evaluation mode tells whether anything else moves it, a gate that is computed elsewhere for
    example, and that it was not dropped at random.

    Args:
        model: any module.
        *example: what its forward takes.
        loss_fn: from the forward's output to the loss, one number.
        **kwargs: keyword arguments of the forward.

    Raises:
        TypeError: `model` is no `nn.Module`, `loss_fn` is no function, or returns no single number.
        ValueError: the example does not fit (the model's own error is the cause), or nothing that
            can be trained leads to the output.

    Example:
        >>> import torch
        >>> class Block(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.fc = nn.Linear(8, 8, bias=False)
        ...         nn.init.zeros_(self.fc.weight)
        ...     def forward(self, x):
        ...         return x + self.fc(x)
        >>> net = nn.Sequential(nn.Linear(4, 8), Block(), Block())
        >>> found = preflight(net, torch.ones(2, 4))
        >>> found.ok, found.streams[0].verdict, found.zero, found.asleep
        (True, 'identity', ('1', '2'), ())
    """
    check_model("preflight", model)
    if loss_fn is not None and not callable(loss_fn):
        raise TypeError(
            "preflight: loss_fn must be a function from the model's output to the loss, got "
            f"{loss_fn!r}"
        )
    look = Look("preflight", model, example, kwargs, loss_fn)
    history = _history(model, look)
    zero = look.zero()
    wakes = {key for key, moved in zero.items() if moved}
    asleep = set[Key]()
    if len(wakes) < len(zero):
        still = Still(model, example, kwargs, zero.keys() - wakes)
        asleep, wakes = still.asleep, wakes | still.wakes
    unmoved = [site for site in history.sites.sites if site.key in asleep]
    dimensions = {p.name: len(p.shape) for p in history.parameters}
    patient = {code: {"patience": 1.0} for code in CODES if RULES[code].patience > 1}
    diagnosis = diagnose(history, select=CODES, thresholds=patient)
    findings = (*diagnosis.findings, *(_never_wakes(site, look, dimensions) for site in unmoved))
    return Preflight(
        history=history,
        diagnosis=replace(diagnosis, findings=findings),
        streams=tuple(_starts(history)),
        asleep=tuple(site.name for site in unmoved),
        zero=tuple(site.name for site in history.sites.sites if site.key in wakes),
        unused=look.unused,
        gradient=look.gradient,
        mode="training" if model.training else "evaluation",
    )


# ---------------------------------------------------------------------- what it says
def _history(model: nn.Module, look: Look) -> History:
    """A history of one capture, with weights and gradients and without an update."""
    recorder = Recorder(describe_run(model, [], Options(), {}), None)
    recorder.begin_step((), step=0.0, epoch=0.0, global_step=0.0, captured=1.0)
    recorder.record_capture(0, look.captured)
    recorder.set_fact("loss", look.captured.loss)
    recorder.describe_parameters(model, [])
    recorder.tell("append_updates", 0, look.sums, look.have)
    recorder.flush()
    return recorder.history


def _starts(history: History) -> Iterator[Start]:
    def of(measure: str, column: str) -> float:
        table = history.table(measure)
        return float(table.values[0, table.columns.index(column)])

    for stream in history.sites.streams:
        sites = [history.sites.sites[index] for index in stream.sites]
        column = f"stream {stream.index}"
        stages = Counter(site.stage for site in sites)
        ratios = tuple(of("branch_ratio", site.name) for site in sites)
        budget = of("residual_budget", column)
        offset = RULES["RES105"].thresholds["offset"]
        limit = float(sum(2 * np.log(count) + offset for count in stages.values()))
        yield Start(
            stream=stream.index,
            verdict=_verdict(sites, ratios, budget, limit),
            ratios=ratios,
            budget=budget,
            law=sum(expected_budget(count) for count in stages.values()),
            limit=limit,
            growth=of("total_growth", column),
            half_depth_growth=of("half_depth_growth", column),
            gradient_ratio=of("gradient_ratio", column),
        )


def _verdict(sites: list[Site], ratios: tuple[float, ...], budget: float, limit: float) -> Verdict:
    if all(ratio == 0 for ratio in ratios):
        return "identity"
    if 2 * sum(site.norm_placement == "post-norm" for site in sites) > len(sites):
        return "post-norm"
    if np.isnan(budget):
        return "unknown"
    if budget <= NEAR:
        return "near"
    return "within its law" if budget <= limit else "far"


def _told(start: Start) -> dict[str, object]:
    known = [ratio for ratio in start.ratios if not np.isnan(ratio)]
    return {
        "count": len(start.ratios),
        "low": short(min(known, default=float("nan"))),
        "high": short(max(known, default=float("nan"))),
        "budget": short(start.budget),
        "law": short(start.law),
        "limit": short(start.limit),
        "near": f"{NEAR:g}",
    }


def _never_wakes(site: Site, look: Look, dimensions: Mapping[str, int]) -> Finding:
    """A finding of RES103, known before the ten steps that this rule itself waits for."""
    rule = RULES["RES103"]
    zeros = [name for name in look.zeros_of(site) if not is_bias(name)]
    several = len(zeros) > 1
    kind = "both factors zero" if several else "no gradient"
    matrices = [name for name in zeros if dimensions[name] > 1]
    return Finding(
        code=rule.code,
        name=rule.name,
        severity=rule.severity,
        where=(site.name,),
        first_step=0,
        last_step=0,
        message=f"r = 0 at {site.name}, and no parameter of the model has any influence on "
        "its branch: no step can wake it up",
        evidence={"value": 0.0},
        expectation="a gradient at one factor of a zero-initialised branch, which then wakes up at "
        "the first step",
        cause=f"{listed(zeros)}: 0 together, so every gradient is exactly 0" if several else "",
        advice=dead_advice(kind, [zeros], matrices),
    )
