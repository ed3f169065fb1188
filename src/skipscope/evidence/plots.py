"""Plots of a study as SVG that stands inside a page and takes the page's colour for its text.

Drawn through matplotlib's objects on a canvas of their own, loaded when the first one is drawn.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skipscope.evidence.outcome import ArmFacts, Evidence, Outcome, Reading
from skipscope.evidence.runs import arms_of, depths, depths_text, losses, of_arm
from skipscope.evidence.statistics import median
from skipscope.reports._text import number, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#010203"  #: stands for the page's own colour until the SVG is written
#: Mid tones that keep their contrast on white and on black; marker and dash tell them apart too.
COLOURS = ("#e0662a", "#2f86d6", "#1f9e77", "#c86fae", "#b58900", "#7a7fdb", "#8a8a8a")
MARKERS = "osD^vP*"
DASHES = ("--", "-", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
COLUMNS = 4  #: of the legend
TICKS = 9  #: depths or steps that get a label each
FEWEST = 2  #: numbers beside an axis; else it is divided evenly
LABELS = 10  #: powers of ten beside an axis, about
LEAST, MOST = 1e-250, 1e250  #: what is beyond is drawn there: no axis reaches as far as a float
EDGE = 1e-3  #: of a median, where a range goes down to 0, which a logarithmic axis cannot show
Of = Callable[[Reading], float | None]
Point = tuple[int, float, float, float]  #: depth or step, median, smallest, largest


@dataclass(frozen=True)
class Plot:
    """One plot."""

    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Curve:
    """A number of the readings, over steps."""

    title: str
    caption: str
    label: str
    middle: Of
    low: Of | None = None  #: the band's lower edge; None: `middle`
    high: Of | None = None
    shortcuts: bool = False  #: of arms with shortcuts only


def gradient_ratio(reading: Reading) -> float | None:
    """The first block's gradient over the last one's, where both are numbers."""
    first, last = reading.gradient_first, reading.gradient_last
    return first / last if first is not None and last else None


SEEDS = "Line: median over seeds; band: smallest to largest. Without runs that diverged."
CURVES = (
    Curve(
        title="Loss over steps",
        caption=f"Batch loss at the readings. {SEEDS}",
        label="batch loss",
        middle=lambda one: one.loss,
    ),
    Curve(
        title="Gradient of the first block over the last",
        caption=f"1 is balance; below it the first block gets less. {SEEDS}",
        label="first / last",
        middle=gradient_ratio,
    ),
    Curve(
        title="Effective rank of the last features",
        caption=f"At 1 all inputs look alike. {SEEDS}",
        label="effective rank",
        middle=lambda one: one.effective_rank,
    ),
    Curve(
        title="Branch ratio r = |F| / |s|",
        caption=(
            "Line: median over sites and seeds; band: smallest to largest site. Without runs that "
            "diverged."
        ),
        label="r",
        middle=lambda one: one.r_median,
        low=lambda one: one.r_smallest,
        high=lambda one: one.r_largest,
        shortcuts=True,
    ),
)


def plots(evidence: Evidence, pair: str) -> list[Plot]:
    """The plots of the arms that are compared with each other; none where nothing ran."""
    arms = [arm for arm in arms_of(evidence, pair) if of_arm(evidence, arm.name)]
    if not arms:
        return []
    curves = (_over_steps(evidence, arms, curve) for curve in CURVES)
    return [_over_depth(evidence, arms), *(plot for plot in curves if plot is not None)]


class Drawing:
    """A figure on logarithmic axes, in the page's colour, with one line after the other."""

    def __init__(self, label: str, along: str) -> None:
        from matplotlib.figure import Figure

        self.figure = Figure(figsize=(6.2, 3.9))
        self.figure.patch.set_visible(False)
        self.axes: Axes = self.figure.add_subplot(autoscale_on=False)
        self.axes.patch.set_visible(False)
        self.axes.set_yscale("log", nonpositive="clip")
        self.axes.set_xlabel(along, color=INK)
        self.axes.set_ylabel(f"{label} (log)", color=INK)
        self.axes.tick_params(which="both", colors=INK)
        self.axes.grid(True, color=INK, alpha=0.15)
        for name, edge in self.axes.spines.items():
            edge.set_visible(name in ("left", "bottom"))
            edge.set_edgecolor(INK)
        self.names: dict[str, Any] = {}
        self.along: set[int] = set()
        self.values: list[float] = []

    def line(self, arm: str, place: int, points: Sequence[Point], *, bars: bool) -> None:
        """Medians as a line, ranges as bars or as a band; the style of an arm is its place's."""
        turn = place % len(COLOURS)
        style: dict[str, Any] = {
            "color": COLOURS[turn], "marker": MARKERS[turn], "linestyle": DASHES[turn],
            "linewidth": 1.8, "markersize": 5, "clip_on": False,
        }  # fmt: skip
        drawn = [(at, *(min(max(one, LEAST), MOST) for one in values)) for at, *values in points]
        at, middle, low, high = zip(*drawn, strict=True) if drawn else ((), (), (), ())
        (self.names[arm],) = self.axes.plot(at, middle, **style)
        if bars:
            self.axes.vlines(at, low, high, color=style["color"], linewidth=4, alpha=0.4)
        else:
            self.axes.fill_between(at, low, high, color=style["color"], alpha=0.15, linewidth=0)
        self.along |= {*at}
        self.values += [*low, *high]

    def lost(self, place: int, depths: Sequence[int]) -> None:
        """Marks at the upper edge, for what has no number."""
        self.axes.plot(
            depths, [1.0] * len(depths), "x", color=COLOURS[place % len(COLOURS)], markersize=9,
            markeredgewidth=2, transform=self.axes.get_xaxis_transform(), clip_on=False,
        )  # fmt: skip
        self.along |= {*depths}

    def svg(self, key: str) -> str:
        """The figure as an element of a page, the same each time.

        Args:
            key: what no other plot of the page is called; its names begin with what it hashes to.
        """
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        self._limits()
        self._legend()
        salt = hashlib.sha256(key.encode()).hexdigest()[:8]
        out = io.StringIO()
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
            nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            FigureCanvasSVG(self.figure).print_svg(out, metadata=nothing)  # type: ignore[no-untyped-call]
        written = out.getvalue()
        element = written[written.index("<svg") :]
        return re.sub(r"<[^<>]*>", lambda tag: _own(tag[0], salt), element)

    def _limits(self) -> None:
        """Room around the numbers, and round ones beside the axes, written as in the tables."""
        from matplotlib.ticker import NullLocator

        low, high = min(self.values, default=0.1), max(self.values, default=10.0)
        decades = math.log10(high) - math.log10(low)
        room = max(10 ** (0.05 * decades), 1.2)
        self.axes.set_ylim(low / room, high * room)
        apart = 1 + math.floor(decades / LABELS)
        first = math.floor(math.log10(low) / apart) * apart
        powers = range(first - apart, math.ceil(math.log10(high)) + 2, apart)
        steps = (1,) if decades > 2 else (1, 2, 5)
        ticks = [step * 10.0**power for power in powers for step in steps]
        kept = [tick for tick in ticks if low / room <= tick <= high * room]
        if len(kept) < FEWEST:
            kept = [low / room + share * (high * room - low / room) for share in (0.2, 0.5, 0.8)]
        self.axes.set_yticks(kept, [number(tick) for tick in kept])
        at = sorted(self.along)
        if len(at) <= TICKS:
            self.axes.set_xticks(at, [str(one) for one in at])
        for axis in (self.axes.xaxis, self.axes.yaxis):
            axis.set_minor_locator(NullLocator())

    def _legend(self) -> None:
        """Names as they stand: a dollar in them is no formula, an underscore hides nothing."""
        lines = math.ceil(len(self.names) / COLUMNS)
        self.figure.subplots_adjust(left=0.13, right=0.97, bottom=0.13, top=0.97 - 0.065 * lines)
        legend = self.axes.legend(
            [*self.names.values()], [f" {visible(name)}" for name in self.names], loc="lower left",
            bbox_to_anchor=(0.0, 1.02), ncols=COLUMNS, frameon=False, labelcolor=INK, fontsize=9,
        )  # fmt: skip
        for text in legend.get_texts():
            text.set_parse_math(False)


def _own(tag: str, salt: str) -> str:
    """A tag with the page's colour, and names that are unique on the page."""
    tag = tag.replace(INK, "currentColor")
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\1s{salt}-", tag)


def _over_depth(evidence: Evidence, arms: Sequence[ArmFacts]) -> Plot:
    drawing = Drawing("training loss", "depth")
    for place, arm in enumerate(arms):
        runs = of_arm(evidence, arm.name)
        each = {depth: losses(r for r in runs if r.cell.depth == depth) for depth in depths(runs)}
        held = [
            (depth, one.median, max(one.lowest, EDGE * one.median), one.lowest + one.width)
            for depth, one in each.items()
            if not one.lost and one.median > 0
        ]
        drawing.line(arm.name, place, held, bars=True)
        drawing.lost(place, [depth for depth, one in each.items() if one.lost])
    drawing.axes.set_xscale("log")
    drawing.axes.set_xlim(min(drawing.along, default=1) / 1.1, max(drawing.along, default=1) * 1.1)
    caption = (
        "Median over seeds; bars: smallest to largest finite run; x at the upper edge: half of the "
        "runs or more diverged."
    )
    return Plot("Training loss by depth", caption, drawing.svg(f"{arms[0].pair} depth"))


def _over_steps(evidence: Evidence, arms: Sequence[ArmFacts], curve: Curve) -> Plot | None:
    drawing = Drawing(curve.label, "step")
    deepest: set[int] = set()
    for place, arm in enumerate(arms):
        runs = of_arm(evidence, arm.name)
        # One that diverges would take the whole axis.
        own = [run for run in runs if run.cell.depth == runs[-1].cell.depth and run.finite]
        points = [] if curve.shortcuts and arm.role == "plain" else _points(own, curve)
        if points:
            drawing.line(arm.name, place, points, bars=False)
            deepest.add(own[0].cell.depth)
    if not deepest:
        return None
    drawing.axes.set_xscale("symlog", linthresh=1.0)
    drawing.axes.set_xlim(min(drawing.along) - 0.05, max(drawing.along) * 1.1 + 0.05)
    title = f"{curve.title}, {depths_text(sorted(deepest))}"
    return Plot(title, curve.caption, drawing.svg(f"{arms[0].pair} {curve.title}"))


def _points(runs: Sequence[Outcome], curve: Curve) -> list[Point]:
    """Step, median, smallest and largest, where a logarithmic axis has a place for them."""
    steps = sorted({one.step for run in runs for one in run.readings})
    points = []
    for step in steps:
        readings = [one for run in runs for one in run.readings if one.step == step]
        edges = (curve.middle, curve.low or curve.middle, curve.high or curve.middle)
        middle, low, high = (_positive(readings, of) for of in edges)
        if middle and low and high:
            points.append((step, median(middle), min(low), max(high)))
    return points


def _positive(readings: Iterable[Reading], of: Of) -> list[float]:
    values = [value for one in readings if (value := of(one)) is not None]
    return [value for value in values if math.isfinite(value) and value > 0]
