"""RES001: a loss that never left its start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Parameter, Run, Severity
from skipscope.rule import Hit, NotMeasurable, Warmup, rule, short
from skipscope.rule.gates import after_warmup

Floats = npt.NDArray[np.float64]


@rule(
    code="RES001",
    name="loss-at-chance",
    severity="warning",
    patience=1,
    explains_overall=("RES205",),
)
def loss_at_chance(
    loss: Table,
    lr: Table,
    warmup: Warmup,
    run: Run,
    parameters: tuple[Parameter, ...] | None = None,
    *,
    share: float = 0.99,
    band: float = 1.05,
    first: int = 5,
    fewest: int = 10,
    settled: int = 100,
    falling: float = 0.995,
    errors: float = 2.0,
    decayed: float = 0.01,
) -> Iterator[Hit]:
    """The loss is no better than guessing, or no better than at the start.

    What it sees:
        The losses of the last `settled` steps, once so many have passed since the end of warm-up
        (the last `fewest` known losses where only captured steps know theirs), or of four times as
        many where these say nothing, in two halves. The second median is no lower than `falling`
        times the first, or by no more than `errors` standard errors, and both lie

        * between `share` and `band` times ln C, where C is the number of outputs of the model's
          last matrix outside the residual branches (of its largest embedding where the head is tied
          to it): the cross-entropy of an even guess among C classes. A warning.
        * above `share` times the median of the first `first` losses of a fresh run. What the loss
          is made of is not known then: an information.

        It began where the losses were last better, counted in such halves.

    Example:
        The loss over 144 steps of an un-normalised MLP of 8 blocks on handwritten
        digits, with labels drawn by chance and with the true ones; a character is the
        median of 4 steps (`python -m benchmarks.faults.draw RES001 --seed 1`).

                     loss by step                            first  largest     last
            sick     █████▇██▇▇████▇████▇█▇▇██▇▇███▇▇▇▇▇█     2.47     2.50     2.34
            healthy  ▇▆▆▆▆▅▅▅▅▅▄▄▄▃▄▃▃▃▃▃▃▃▃▃▂▂▂▂▂▂▂▂▂▂▂▂     2.28     2.28    0.279
            scale    0 to 2.50, linear
            found    no lower than 0.99 ln 10 = 2.28, 100 steps long

    Why it matters:
        No number of a residual addition shows this: branch ratios, growth and gradients of a net
        that never learns can all look right. ln 10 = 2.303 for ten classes, ln 50257 = 10.82 for
        GPT-2's vocabulary. A net that starts above ln C and falls to it has only unlearned its
        initial preferences.
    What to try:
        * overfit one small batch: a net that cannot has a fault in data, labels or loss, not in
          its size
        * look at the update ratios (RES401, RES402) and the gradients by depth (RES301)
        * check that labels belong to their inputs and that what is optimised is what is used
    When it is wrong:
        A regression has no ln C; one whose loss happens to rest within a few percent of the ln of
        its number of outputs is mistaken for a classifier. With uneven classes guessing costs the
        entropy of their frequencies, less than ln C, and a language model that knows only
        frequencies rests there as well: neither is seen. Adversarial and contrastive losses need
        not fall at all. A run whose learning rate has decayed below `decayed` of its highest, or
        whose loss is not positive, is not judged.
    Thresholds:
        * share: at least this share of ln C, or of the first losses
        * band: at most this multiple of ln C
        * first: losses that make the start
        * fewest: losses needed after warm-up
        * settled: steps needed after warm-up, and looked back
        * falling: a second half below this share of the first is a run that is waking up
        * errors: unless it is below by no more than so many standard errors of the difference of
          the two medians, taken from the differences of losses that follow each other
        * decayed: a learning rate below this share of its highest ends the judgement
    Source:
        Arithmetic: the cross-entropy of p = 1/C is ln C, also with smoothed labels. "Look for
        correct loss at chance performance": CS231n notes, neural-networks-3. `falling` leaves out a
        Fixup net of 14 blocks at a small learning rate: 2.32, 2.28, 2.26 over 120 steps. `errors`:
        of 40 nets with labels by chance whose losses were known at captures only, 36 were found
        without it and 40 with it; none of 160 healthy nets was.
    """
    start = after_warmup(warmup, settled)
    _still_running(lr, decayed)
    chance = _chance(parameters or ())
    if chance is None and not run.fresh:
        raise NotMeasurable("needs the width of the head, or a fresh run's first losses")
    for back in (settled, _LONG * settled):  # losses of few samples tell only over a longer time
        early, recent = _split(loss, start, first, fewest, back)
        hit = _judged(
            recent, chance, early if run.fresh else None, (share, band), _Fall(falling, errors)
        )
        if hit is not None:
            yield hit
            return


#: The second look goes back so many times as far.
_LONG = 4


def _judged(
    recent: _Recent,
    chance: _Chance | None,
    early: float | None,
    limits: tuple[float, float],
    fall: _Fall,
) -> Hit | None:
    share, band = limits
    medians = [float(np.median(half)) for half in np.array_split(recent.values, 2)]
    if fall.is_seen(medians, recent):
        return None
    if chance is not None and all(
        share * chance.level <= median <= band * chance.level for median in medians
    ):
        return _hit(
            recent,
            medians[-1],
            f"a loss below ln {chance.outputs} = {short(chance.level)}, the cross-entropy of an "
            f"even guess ({chance.name} has {chance.outputs} outputs)",
            f"at chance: {short(chance.level)} is ln {chance.outputs}",
            {"ln C": chance.level, "head": chance.name},
            "warning",
            share * chance.level,
        )
    if early is not None and min(medians) > share * early:
        return _hit(
            recent,
            medians[-1],
            f"a loss below that of the start, {short(early)} (the run's own history)",
            f"no lower than at the start ({short(early)})",
            {"first losses": early},
            "info",
            share * early,
        )
    return None


@dataclass(frozen=True)
class _Fall:
    """When the second of two medians is lower than the first."""

    share: float
    errors: float

    def is_seen(self, medians: Sequence[float], recent: _Recent) -> bool:
        """Whether it is lower by a share, and by more than what chance makes of so few losses."""
        fallen = medians[0] - medians[1]
        error = _MEDIAN * recent.noise * float(np.sqrt(4 / len(recent.values)))
        return bool(fallen > max((1 - self.share) * medians[0], self.errors * error))


#: Standard deviation over median absolute deviation, and standard error of a median over that of a
#: mean, of normal values.
_MAD, _MEDIAN = 1.4826, 1.2533


@dataclass(frozen=True)
class _Chance:
    """The loss of an even guess."""

    outputs: int
    level: float
    name: str


@dataclass(frozen=True)
class _Recent:
    """The losses that are judged."""

    values: Floats
    steps: tuple[int, int]
    all_values: Floats  #: those of the whole run, without the first
    all_steps: npt.NDArray[np.int64]

    @property
    def noise(self) -> float:
        """Standard deviation of a loss about its neighbours, over four times as long."""
        near = self.all_values[-_LONG * len(self.values) :]
        return float(_MAD / np.sqrt(2) * np.median(np.abs(np.diff(near))))

    def since(self, level: float) -> int:
        """The step from which on no median over half as many losses was below a level."""
        half = max(len(self.values) // 2, 1)
        count = len(self.all_values) // half
        tail = self.all_values[len(self.all_values) - count * half :].reshape(count, half)
        below = np.flatnonzero(np.median(tail, axis=1) < level)
        kept = count - (int(below[-1]) + 1 if len(below) else 0)
        return min(int(self.all_steps[-kept * half]), self.steps[0])


def _still_running(lr: Table, decayed: float) -> None:
    """Check that there is a learning rate left.

    Raises:
        NotMeasurable: it has decayed.
    """
    rates = np.nan_to_num(lr.values).max(axis=1)
    if rates.max() > 0 and rates[-1] <= decayed * rates.max():
        raise NotMeasurable(
            f"the learning rate has decayed to {short(float(rates[-1]))}: nothing moves any more"
        )


def _split(loss: Table, start: int, first: int, fewest: int, settled: int) -> tuple[float, _Recent]:
    """The median of the first losses, and the recent ones.

    Raises:
        NotMeasurable: too few losses are known, or they are not positive.
    """
    known = ~loss.missing[:, 0] & np.isfinite(loss.values[:, 0])
    steps, values = loss.steps[known], loss.values[known, 0]
    after = steps >= start
    if after.sum() < fewest:
        raise NotMeasurable(f"needs {fewest} losses after warm-up, has {int(after.sum())}")
    if values.min() <= 0:
        raise NotMeasurable("needs a positive loss")
    since = min(steps[-1] - settled + 1, steps[-fewest])
    chosen = after & (steps >= since)
    inside = steps[chosen]
    recent = _Recent(
        values[chosen], (int(inside[0]), int(inside[-1])), values[first:], steps[first:]
    )
    return float(np.median(values[:first])), recent


def _chance(parameters: Sequence[Parameter]) -> _Chance | None:
    """What an even guess costs, read off the head: the last matrix outside the branches."""
    outside = [p for p in parameters if p.trainable and not p.sites and len(p.shape) > 1]
    heads = [p for p in outside if p.owner != "Embedding"]
    tied = max(outside, key=lambda p: p.shape[0], default=None)
    head = heads[-1] if heads else tied
    if head is None or head.shape[0] < 2:
        return None
    return _Chance(head.shape[0], float(np.log(head.shape[0])), head.name)


def _hit(
    recent: _Recent,
    value: float,
    expectation: str,
    what: str,
    evidence: dict[str, float | str],
    severity: Severity,
    level: float,
) -> Hit:
    first, last = recent.steps
    return Hit(
        where=("model",),
        value=value,
        expectation=expectation,
        message=f"median loss {short(value)} over steps {first} to {last}, {what}",
        first_step=recent.since(level),
        last_step=last,
        severity=severity,
        evidence=evidence,
    )
