"""RES303: single steps whose gradient is far above those before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.rule import Gate, Hit, NotMeasurable, rule, short

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@rule(
    code="RES303",
    name="gradient-spike",
    severity="warning",
    patience=1,
)
def gradient_spike(
    gradient_norm: Table,
    gate: Gate,
    lr: Table | None = None,
    skipped: Table | None = None,
    *,
    sigmas: float = 6.0,
    factor: float = 3.0,
    before: int = 32,
    window: int = 128,
    several: int = 3,
    within: int = 1000,
) -> Iterator[Hit]:
    """The gradient of a step is far above what the steps before it had.

    What it sees:
        The norm of the whole gradient (unscaled, after accumulation, before clipping) at each
        recorded step. A spike is a step whose ln norm is more than `sigmas` standard deviations
        above the mean of the recorded steps before it, `before` of them at least and `window` at
        most, earlier spikes left out, and `factor` times their median. Three such steps in a row
        are no spikes but a new level, from which the comparison starts again. One is an
        information; `several` within the last `within` steps are a warning.

    Example:
        The norm of the gradient over 108 steps of an un-normalised MLP of 8 blocks,
        with the loss times 300 in four of them and as it is; a character is the
        largest of 3 steps (`python -m benchmarks.faults.draw RES303 --seed 4`).

                     gradient by step                        first  largest     last
            sick     ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▂▁█▁▁▁▇▁▁▁█▂▁▁▁▁▁█▁▁▁     3.43      999     2.83
            healthy  ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▂▁▁▁▁▁▁▁▁▁▁▂▁▁▁▁▁▁▁▁▁     3.43     3.60     2.83
            scale    2.30 to 999, logarithmic
            found    3 steps more than 6 sigmas above those before them

    Why it matters:
        A spike moves the weights by a step that no later step takes back, and spikes that come
        more often announce a divergence. Its step number tells where to look: at the batch of that
        step, or at a learning rate that has reached what the curvature allows.
    What to try:
        * look at the data of the named steps
        * clip the gradient norm at two to three times its usual size
        * lower the learning rate, or beta2 of Adam, if spikes come in growing numbers
    When it is wrong:
        While a learning rate rises nothing is judged, nor the first `before` recorded steps. The
        comparison is with this run's own past, so it needs no unit; batches of very different size
        or difficulty make their own spread and raise the limit themselves. On sparse captures most
        spikes fall between two of them.
    Thresholds:
        * sigmas: standard deviations of ln norm above the mean
        * factor: and this many times the median
        * before: recorded steps needed before the first judgement
        * window: recorded steps that are compared with, at most
        * several: spikes that make a warning
        * within: in so many steps
    Source:
        OLMo-core skips steps 6 sigma above the last 128; ZClip (arXiv 2504.02507) clips by the z of
        the norm. Spikes and their causes: Small-scale proxies (2309.14322), Spike No More
        (2312.16903). The factor is argued: where the norm hardly varies, 6 sigma is a few percent.
    """
    steps, norms = _total(gradient_norm, skipped)
    if len(steps) <= before:
        raise NotMeasurable(f"needs more than {before} recorded steps, has {len(steps)}")
    rising = _rising(lr, steps)
    found = _spikes(norms, rising, (sigmas, factor, before, window))
    recent = [(row, z) for row, z in found if steps[-1] - steps[row] < within]
    if not recent:
        return
    row, z = max(recent, key=lambda spike: spike[1])
    usual = float(np.median(norms[max(row - window, 0) : row]))
    enough = len(recent) >= max(several, gate.patience)
    yield Hit(
        where=("model",),
        value=z,
        expectation=f"ln of the gradient norm within {short(sigmas)} standard deviations of the "
        "steps before (the run's own history)",
        message=f"{len(recent)} gradient spike{'s' if len(recent) > 1 else ''}, the largest at "
        f"step {steps[row]}: norm {short(norms[row])}, usually {short(usual)}",
        first_step=int(steps[recent[0][0]]),
        last_step=int(steps[recent[-1][0]]),
        severity=None if enough else "info",
        stands=True,  # for `within` steps
        evidence={
            "spikes": float(len(recent)),
            "standard deviations": z,
            "norm": float(norms[row]),
            "usual norm": usual,
            "steps": ", ".join(str(steps[at]) for at, _ in recent[-8:]),
        },
    )


def _total(gradient: Table, skipped: Table | None) -> tuple[npt.NDArray[np.int64], Floats]:
    """Step and norm over all parameters, where there was a finite gradient and a real step."""
    squares = np.nansum(gradient.values**2, axis=1)
    kept = np.isfinite(squares) & (squares > 0) & np.isfinite(gradient.values).any(axis=1)
    if skipped is not None:
        gone = skipped.steps[np.nan_to_num(skipped.values[:, 0]) > 0]
        kept &= ~np.isin(gradient.steps, gone)
    return gradient.steps[kept], np.sqrt(squares[kept])


def _rising(lr: Table | None, steps: npt.NDArray[np.int64]) -> Mask:
    """Whether a learning rate is above its value ten steps before. Shape: (steps,)."""
    if lr is None or not len(lr.steps):
        return np.zeros(len(steps), dtype=bool)
    at = np.clip(np.searchsorted(lr.steps, steps, side="right") - 1, 0, None)
    before = np.maximum(at - 10, 0)
    rates = np.nan_to_num(lr.values)
    result: Mask = np.logical_or.reduce(rates[at] > 1.01 * rates[before], axis=1)
    return result


def _spikes(
    norms: Floats, rising: Mask, limits: tuple[float, float, int, int]
) -> list[tuple[int, float]]:
    """Row and z of each spike."""
    sigmas, factor, before, window = limits
    logs = np.log(norms)
    # Only above the least so far can a norm be above a median: most rows need no statistics.
    possible = ~rising & (norms > factor * np.exp(np.minimum.accumulate(logs)))
    level = 0  # where the present level of the norm began
    found: list[tuple[int, float]] = []
    for row in map(int, np.flatnonzero(possible)):
        spikes = [at for at, _ in found]
        past = logs[level:row]
        if spikes:
            past = np.delete(past, [at - level for at in spikes if at >= level])
        past = past[-window:]
        if len(past) < before:
            continue
        z = float((logs[row] - past.mean()) / max(float(past.std()), 1e-6))
        if z > sigmas and norms[row] > factor * np.exp(np.median(past)):
            found.append((row, z))
            if spikes[-2:] == [row - 2, row - 1]:
                found, level = found[:-3], row - 2
    return found
