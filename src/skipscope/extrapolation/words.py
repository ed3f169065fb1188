"""The page of an extrapolation: what was measured, which law, the numbers, what is not known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from skipscope.extrapolation.fit import Fit, Fits, Shape
from skipscope.extrapolation.records import (
    Curve,
    ExtrapolationNumbers,
    Moment,
    Number,
    Scalar,
    StageAt,
    StreamAt,
)
from skipscope.extrapolation.several import LAWS, OF_SHAPE, otherwise, sides
from skipscope.names import counted
from skipscope.reports._text import factor, number, signed
from skipscope.reports.parts import Grid, Notes, Part, Title

CONSTANT = "the same at every depth: it does not change at all, so every law says the same"
BEFORE = ("pre-norm", "pre-activation", "sandwich")  #: placements with a norm before the branch
EXPONENTIAL_PRE_NORM = (
    "norms stand before the branches, and a branch that reads a normalised input cannot keep "
    "growing with its stream: do not trust this law beyond the measured depth"
)
LINEAR_PRE_NORM = (
    "norms stand before the branches, and a branch that reads a normalised input cannot keep "
    "growing with its stream: expect growth near that of linear variance"
)
OPEN = "a factor a site; the history does not tell which law of two holds"
BOTH = "linear variance and a factor a site fit alike"
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
            yield Notes(tuple(otherwise(stage)))
        yield Notes(tuple(_scalar(stream)))


def _has_numbers(stage: StageAt) -> bool:
    return (
        stage.extrapolated[0].growth is not None
        or stage.gradient.law is not None
        or bool(stage.answers)
    )


def _about(stream: StreamAt) -> str:
    stages = f" in {len(stream.stages)} stages" if len(stream.stages) > 1 else ""
    return f"{counted(stream.sites, 'site')}{stages}, norms: {stream.placement}"


def _stage(stage: StageAt, name: str, placement: str) -> Iterator[tuple[str, str]]:
    yield "stream", f"{name}{_law(stage.forward)}"
    if stage.forward.fits is not None and _has_shape(stage.forward.fits):
        yield "fit", f"over {counted(stage.counted, 'site')}: {_quality(stage.forward.fits)}"
        yield from _check(stage.forward.fits)
    if stage.forward.answers and stage.cosine is not None and abs(stage.cosine) > ALIGNED:
        text = (
            f"shortcut and branch are not independent (median cosine {signed(stage.cosine)}), as "
            "the law takes them to be: growth is that of the curve, B that of r"
        )
        yield "", text
    if placement in BEFORE:
        yield from _behind_norms(stage.forward)
    if stage.gradient.fits is None or not _has_shape(stage.gradient.fits):
        yield "gradients", CONSTANT if _constant(stage.gradient) else stage.gradient.reason
    else:
        yield "gradients", f"{_gradient_law(stage)}: {_quality(stage.gradient.fits)}"


def _has_shape(fits: Fits) -> bool:
    """Whether there is more to say of the curves than that the profile is flat."""
    return not fits.flat or len(fits.standing) > 1


def _behind_norms(curve: Curve) -> Iterator[tuple[str, str]]:
    if curve.fits is None or not curve.answers or curve.fits.constant:
        return
    if curve.fits.shapes == ("geometric",):
        yield "", EXPONENTIAL_PRE_NORM
    elif "constant" in curve.answers:
        yield "", LINEAR_PRE_NORM


def _gradient_law(stage: StageAt) -> str:
    curve = stage.gradient
    if not curve.laws:
        return f"law {curve.law}" if curve.law else curve.reason
    told = curve.reason and curve.reason != stage.forward.reason
    return f"{_open(curve)}{f' ({curve.reason})' if told else ''}"


def _open(curve: Curve) -> str:
    """What several laws have in common."""
    if curve.fits is None or len(curve.fits.shapes) == 1:
        return OPEN
    return f"flat, varies by under 5 %; {BOTH}" if curve.fits.flat else BOTH


def _law(curve: Curve) -> str:
    if curve.laws and curve.fits is not None:
        curves = " or ".join(_parameter(one) for one in curve.fits.standing)
        join = ": " if len(curve.fits.shapes) > 1 else ", "
        return f"{_open(curve)}{join}{curves} ({curve.reason})"
    if curve.law is None:
        return curve.reason
    if _constant(curve):
        return CONSTANT
    text = f"law {curve.law}: {LAWS[curve.law]}"
    if curve.fits is not None and curve.fits.standing:
        text += f", {_parameter(curve.fits.standing[0])}"
    return f"{text} ({curve.reason})" if curve.reason else text


def _constant(curve: Curve) -> bool:
    """Whether a profile does not change along depth at all, so that every law says the same."""
    return curve.law is not None and curve.fits is not None and curve.fits.constant


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
    if not fits.check:
        return
    *said, was = (factor(math.exp(min(one / 2, 700.0))) for one in fits.check)
    one = len(said) == 1
    each = said if one else map(_of_curve, said, fits.shapes)
    start = "fitted to its first half alone it says" if one else "fitted to the first half they say"
    yield "", f"{start} {' and '.join(each)} at the last sum, measured {was}"


def _of_curve(said: str, shape: Shape) -> str:
    return f"{said} ({OF_SHAPE[shape]})"


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
    beside = sides(stage)
    for one in (stage.measured, *(beside or stage.extrapolated)):
        measured = one is stage.measured
        scalar = (stream.scalar.multiplier if stream.scalar else None) if measured else None
        yield (
            str(one.sites),
            one.asked,
            "" if measured else "any" if constant else f"{'if ' * bool(beside)}{one.law or 'none'}",
            factor(one.growth),
            number(one.budget),
            factor(one.multiplier),
            factor(one.gradient),
            factor(scalar if measured else powers.get(one.asked)) if whole else "-",
        )


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
    if seen.at and others and all(_no_power(one) for one in others):
        text = (
            "d^n takes every further block to multiply like the mean one, which is not the law of "
            "this gradient: read the law's depth multiplier"
        )
        yield "", text


def _no_power(gradient: Curve) -> bool:
    """Whether no law that it may follow multiplies by one factor a site at every depth."""
    return bool(gradient.answers) and "constant" not in gradient.answers


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
