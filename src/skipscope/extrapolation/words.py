"""The page of an extrapolation: what was measured, which law, the numbers, what is not known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from skipscope.extrapolation.fit import Fit, Fits
from skipscope.extrapolation.records import (
    At,
    Curve,
    ExtrapolationNumbers,
    Moment,
    Number,
    Scalar,
    StageAt,
    StreamAt,
)
from skipscope.names import counted
from skipscope.reports._text import factor, number, signed
from skipscope.reports.parts import Grid, Notes, Part, Title
from skipscope.theory import Law

#: What each law says, in a clause.
LAWS: dict[Law, str] = {
    "normalised": "variance linear in depth",
    "constant": "every block multiplies the stream alike",
    "depth-scaled": "branches shrink as 1/sqrt(L) of the deeper net too",
}
#: What each law of a factor a site takes the deeper net to be.
STARTS: dict[Law, str] = {
    "constant": "the branches of the deeper net start as large as here",
    "depth-scaled": "the deeper the net, the smaller they start: by 1/sqrt of the depth",
}
#: The law that each curve stands for.
OF_SHAPE = {"linear": "linear variance", "geometric": "a factor a site"}
CONSTANT = "the same at every depth: it does not change at all, so every law says the same"
EXPONENTIAL_PRE_NORM = (
    "norms stand before the branches, and a branch that reads a normalised input cannot keep "
    "growing with its stream: do not trust this law beyond the measured depth"
)
OPEN = "a factor a site; the history does not tell which law of two holds"
ALIGNED = 0.1  #: cosine of shortcut and branch up to which they count as independent
HEAD = ("sites", "depth", "law", "growth", "B", "depth\nmultiplier", "gradient\nfirst/last", "d^n")


def parts(numbers: ExtrapolationNumbers) -> Iterator[Part]:
    """The page, part by part."""
    asked = ", ".join(one.text for one in numbers.depths)
    named = f"  {numbers.model}" if numbers.model else ""
    yield Title(f"skipscope extrapolate{named}  {counted(numbers.sites, 'site')}  to {asked}", True)
    if numbers.why:
        yield Notes((("nothing", f"{numbers.why}: nothing to extrapolate from"),))
        return
    yield Notes((("note", "rows other than 'measured' are extrapolated, not measured"),))
    for moment in numbers.moments:
        yield from _moment(moment)
    yield Title("What this cannot know")
    yield Notes(tuple(("" if at else "limits", one) for at, one in enumerate(numbers.limits)))


def _moment(moment: Moment) -> Iterator[Part]:
    for stream in moment.streams:
        several = f", stream {stream.index}" if len(moment.streams) > 1 else ""
        yield Title(f"{moment.label[:1].upper()}{moment.label[1:]}{several}")
        yield Notes((("measured", _about(stream)),))
        for stage in stream.stages:
            name = f"stage of {stage.sites}: " if len(stream.stages) > 1 else ""
            yield Notes(tuple(_stage(stage, name, stream.placement)))
            if _has_numbers(stage):
                yield Grid(HEAD, tuple(_rows(stage, stream)), names=(1, 2))
            yield Notes(tuple(_otherwise(stage)))
        yield Notes(tuple(_scalar(stream)))


def _has_numbers(stage: StageAt) -> bool:
    return (
        stage.extrapolated[0].growth is not None
        or stage.gradient.law is not None
        or _undecided(stage)
    )


def _undecided(stage: StageAt) -> bool:
    """Whether both laws of one curve stand side by side, none of them chosen."""
    return bool(stage.otherwise) and stage.extrapolated[0].law is None


def _about(stream: StreamAt) -> str:
    stages = f" in {len(stream.stages)} stages" if len(stream.stages) > 1 else ""
    return f"{counted(stream.sites, 'site')}{stages}, norms: {stream.placement}"


def _stage(stage: StageAt, name: str, placement: str) -> Iterator[tuple[str, str]]:
    yield "stream", f"{name}{_law(stage.forward)}"
    if stage.forward.fits is not None and not stage.forward.fits.flat:
        yield "fit", f"over {counted(stage.counted, 'site')}: {_quality(stage.forward.fits)}"
        yield from _check(stage.forward.fits)
    known = stage.forward.law is not None or stage.forward.open
    if known and stage.cosine is not None and abs(stage.cosine) > ALIGNED:
        text = (
            f"shortcut and branch are not independent (median cosine {signed(stage.cosine)}), as "
            "the law takes them to be: growth is that of the curve, B that of r"
        )
        yield "", text
    exponential = stage.forward.open or stage.forward.law in ("constant", "depth-scaled")
    if exponential and placement == "pre-norm" and not _constant(stage.forward):
        yield "", EXPONENTIAL_PRE_NORM
    if stage.gradient.fits is None or stage.gradient.fits.flat:
        yield "gradients", CONSTANT if _constant(stage.gradient) else stage.gradient.reason
    else:
        yield "gradients", f"{_gradient_law(stage)}: {_quality(stage.gradient.fits)}"


def _gradient_law(stage: StageAt) -> str:
    if stage.gradient.open:
        reason = "" if stage.forward.open else f" ({stage.gradient.reason})"
        return f"{OPEN}{reason}"
    return f"law {stage.gradient.law}" if stage.gradient.law else stage.gradient.reason


def _law(curve: Curve) -> str:
    if curve.open and curve.fits is not None and curve.fits.chosen is not None:
        return f"{OPEN}, {_parameter(curve.fits.chosen)} ({curve.reason})"
    if curve.law is None:
        return curve.reason
    if _constant(curve):
        return CONSTANT
    text = f"law {curve.law}: {LAWS[curve.law]}"
    if curve.fits is not None and curve.fits.chosen is not None:
        text += f", {_parameter(curve.fits.chosen)}"
    return f"{text} ({curve.reason})" if curve.reason else text


def _constant(curve: Curve) -> bool:
    """Whether a profile does not change along depth at all, so that every law says the same."""
    return curve.law is not None and curve.fits is not None and curve.fits.flat


def _parameter(one: Fit) -> str:
    if one.shape == "linear":
        return f"1 + k/a with a = {number(one.parameter)} at the first sum that counts"
    return f"RMS x{math.sqrt(one.parameter):.4g} a site here"


def _quality(fits: Fits) -> str:
    """Both fits side by side."""
    return ", ".join(
        f"{OF_SHAPE[one.shape]} R^2 {_share(one.r_squared)} (off by {_off(one.residual)})"
        for one in (fits.linear, fits.geometric)
    )


def _check(fits: Fits) -> Iterator[tuple[str, str]]:
    """What half of the profile would have said of the whole."""
    if fits.check is not None:
        said, was = (factor(math.exp(min(one / 2, 700.0))) for one in fits.check)
        yield "", f"fitted to its first half alone it says {said} at the last sum, measured {was}"


def _share(value: Number) -> str:
    """R^2; a curve that is worse than a constant has no share to speak of."""
    return "-" if value is None else "below 0" if value < 0 else f"{value:.3f}"


def _off(residual: float) -> str:
    """A residual of ln v, as the error of an RMS."""
    half = residual / 2
    return f"{100 * half:.1f} %" if half < 0.3 else factor(math.exp(min(half, 700.0)))


def _rows(stage: StageAt, stream: StreamAt) -> Iterable[tuple[str, ...]]:
    powers = {asked: value for asked, _, value in stream.scalar.at} if stream.scalar else {}
    whole = len(stream.stages) == 1
    constant = _constant(stage.forward)
    undecided = _undecided(stage)
    for one in (stage.measured, *(stage.otherwise if undecided else stage.extrapolated)):
        measured = one is stage.measured
        scalar = (stream.scalar.multiplier if stream.scalar else None) if measured else None
        yield (
            str(one.sites),
            one.asked,
            "" if measured else "any" if constant else f"{'if ' * undecided}{one.law or 'none'}",
            factor(one.growth),
            number(one.budget),
            factor(one.multiplier),
            factor(one.gradient),
            factor(scalar if measured else powers.get(one.asked)) if whole else "-",
        )


def _otherwise(stage: StageAt) -> Iterator[tuple[str, str]]:
    """The other law of the same curve: which holds is decided by how the deeper net is made."""
    if _undecided(stage):
        for law in dict.fromkeys(one.law for one in stage.otherwise if one.law):
            yield ("or" if law != stage.otherwise[0].law else "either"), f"{law}: {STARTS[law]}"
        return
    for at, one in enumerate(stage.otherwise):
        law = one.law or "constant"
        start = f"the same curve under {law} ({LAWS[law]}): " if not at else ""
        end = ";" if at + 1 < len(stage.otherwise) else ""
        yield "or" if not at else "", f"{start}{_at(one)}{end}"


def _at(one: At) -> str:
    text = f"{one.asked} growth {factor(one.growth)}, B {number(one.budget)}"
    if one.multiplier is not None:
        return f"{text}, depth multiplier {factor(one.multiplier)}"
    return text if one.gradient is None else f"{text}, gradient first/last {factor(one.gradient)}"


def _scalar(stream: StreamAt) -> Iterator[tuple[str, str]]:
    seen = stream.scalar
    if seen is None:
        yield "d^n", "no gradient was measured from one end to the other"
        return
    base = _base(seen)
    start = f"from the {seen.start} to the last sum"
    yield "d^n", f"{base}^{seen.blocks} = {_precise(seen.multiplier)} measured, {start}"
    if seen.at:
        yield "", ", ".join(f"{base}^{n} = {_precise(value)}" for _, n, value in seen.at)
    else:
        yield "", "not extrapolated: the gradient follows no law along the whole stream"
    others = [one.gradient for one in stream.stages if not _constant(one.gradient)]
    if seen.at and others and all(one.law not in (None, "constant") for one in others):
        text = (
            "d^n takes every further block to multiply like the mean one, which is not the law of "
            "this gradient: read the law's depth multiplier"
        )
        yield "", text


def _base(seen: Scalar) -> str:
    """The base with the digits that give each power beside it: 1^10 is not 0.9998."""
    powers = [(seen.blocks, seen.multiplier), *((n, value) for _, n, value in seen.at)]
    for digits in range(4, 17):
        base = f"{seen.factor:.{digits}g}"
        if all(_precise(_power(float(base), n)) == _precise(value) for n, value in powers):
            return base
    return f"{seen.factor:.17g}"


def _power(base: float, count: float) -> float:
    try:
        return float(base**count)
    except OverflowError:
        return math.inf


def _precise(value: float) -> str:
    """A power with the digits in which it is written: 0.8^20 = 0.01153."""
    return f"{value:.4g}"
