"""Heat maps of depth by step: r, growth and gradient gain on logarithmic colour scales.

Drawn through matplotlib's objects on a canvas of their own: the user's figures, backend and pyplot
state stay as they are, and matplotlib is imported when the first picture is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from skipscope.records import Diagnosis, Finding
from skipscope.reports._collect import sites_at
from skipscope.reports._text import common_start, number, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize

    from skipscope.history import History, Table

Image = npt.NDArray[np.uint8]

#: Measures that have a picture: title, and whether 1 is the middle of its colours.
PICTURES: Mapping[str, tuple[str, bool]] = {
    "branch_ratio": ("branch ratio r = |F| / |s|", False),
    "growth": ("growth |y| / |s|", True),
    "gradient_gain": ("gradient gain |g_x| / |g_y|", True),
}
WIDTH, DPI = 1100, 100  #: pixels, and pixels an inch
MOST_COLUMNS, MOST_NAMES, NAME = 400, 45, 26
DECADES = 5  #: of r that the colours tell apart, from the largest down
MISSING, NOT_A_NUMBER, ZERO = "#d9d9d9", "#e5007d", "#000000"


@dataclass(frozen=True)
class Mark:
    """A finding at one row of a heat map."""

    column: str  #: the table's column, a row of the picture
    finding: Finding


def pictures(history: History, diagnosis: Diagnosis | None = None) -> dict[str, Image]:
    """The heat maps of a run, by measure; empty before the first capture.

    Shape: each (height, width, 3), uint8.
    """
    found = diagnosis or Diagnosis()
    rows = [site.name for site in history.sites.block_level]
    names = {site.index: site.name for site in history.sites.sites}
    marks = [
        Mark(names[index], finding)
        for finding in found.roots
        for place in finding.where
        for index in sites_at(history, place)
    ]
    drawn = {}
    for measure, (title, diverging) in PICTURES.items():
        table = history.table(measure)
        if len(table.steps) and rows:
            drawn[measure] = heat_map(
                table, rows=rows, title=title, diverging=diverging, marks=marks
            )
    return drawn


def heat_map(
    table: Table,
    *,
    rows: Sequence[str] = (),
    title: str = "",
    diverging: bool = False,
    marks: Sequence[Mark] = (),
) -> Image:
    """Draw a table: its columns from top to bottom, its steps from left to right.

    Args:
        table: of a positive measure; one column of the picture a row of the table.
        rows: columns of the table to draw, in this order; empty: all.
        title: what the colours mean; empty: the table's label.
        diverging: colours part at 1.
        marks: findings to draw at their row, from their first to their last step.

    Shape: (height, width, 3), uint8; the height grows with the rows.

    Raises:
        ValueError: nothing to draw.
    """
    names = [name for name in rows or table.columns if name in table.columns]
    if not names or not len(table.steps):
        raise ValueError(f"no heat map of {table.name}: it has no rows or no steps")
    columns = [table.columns.index(name) for name in names]
    kept = np.unique(np.linspace(0, len(table.steps) - 1, MOST_COLUMNS).round().astype(int))
    values = table.values[kept][:, columns].T
    missing = table.missing[kept][:, columns].T
    return _draw(
        values, missing, names, table.steps[kept], title or table.label, table.unit, diverging,
        [mark for mark in marks if mark.column in names],
    )  # fmt: skip


def _draw(
    values: npt.NDArray[np.float64],
    missing: npt.NDArray[np.bool_],
    names: Sequence[str],
    steps: npt.NDArray[np.int64],
    title: str,
    unit: str,
    diverging: bool,
    marks: Sequence[Mark],
) -> Image:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = 150 + min(max(18 * len(names), 180), 1000)
    figure = Figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colours, norm = _colours(values[~missing], diverging)
    shown = np.ma.array(_on_scale(values, norm), mask=missing | np.isnan(values))
    image = axes.imshow(shown, aspect="auto", cmap=colours, norm=norm, interpolation="nearest")
    axes.set_facecolor(MISSING)
    broken = np.isnan(values) & ~missing
    if broken.any():
        _cover(axes, broken)
    _label_axes(axes, names, steps, {names.index(mark.column) for mark in marks})
    _mark(axes, names, steps, marks)
    bar = figure.colorbar(image, ax=axes, extend="both", pad=0.08 if marks else 0.02, fraction=0.05)
    bar.set_ticks(_ticks(norm), labels=[number(tick) for tick in _ticks(norm)])
    bar.minorticks_off()
    bar.set_label(f"{title}{f' [{unit}]' if unit else ''} (log)")
    axes.set_title(f"{title} by depth and step", loc="left", fontsize=12, fontweight="bold")
    _explain(axes, missing.any(), broken.any(), bool((values[~missing] == 0).any()))
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels: Image = np.array(canvas.buffer_rgba())[:, :, :3].copy()  # type: ignore[no-untyped-call]
    return pixels


def _colours(values: npt.NDArray[np.float64], diverging: bool) -> tuple[Colormap, Normalize]:
    """The colour map and its logarithmic scale for these numbers."""
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm

    sizes = values[np.isfinite(values) & (values > 0)]
    if diverging:
        reach = float(np.exp(np.abs(np.log(sizes)).max())) if len(sizes) else 2.0
        reach = min(max(reach, 2.0), 1e4)
        colours, norm = colormaps["RdBu_r"], LogNorm(1 / reach, reach)
    else:
        high = float(sizes.max()) if len(sizes) else 1.0
        low = max(float(sizes.min()) if len(sizes) else 0.1, high / 10**DECADES)
        colours, norm = colormaps["viridis"], LogNorm(min(low, high / 2), high)
    return colours.with_extremes(bad=(0, 0, 0, 0), under=ZERO), norm


def _on_scale(values: npt.NDArray[np.float64], norm: Normalize) -> npt.NDArray[np.float64]:
    """Numbers off the scale at its ends; zero, which has no logarithm, below it."""
    low, high = float(norm.vmin or 1.0), float(norm.vmax or 1.0)
    clipped: npt.NDArray[np.float64] = np.where(values > 0, np.clip(values, low, high), low / 2)
    return clipped


def _ticks(norm: Normalize) -> list[float]:
    """Round numbers along a logarithmic scale: as many as stay readable."""
    low, high = float(norm.vmin or 1.0), float(norm.vmax or 1.0)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)):
        ticks = [step * 10.0**power for power in powers for step in steps]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) >= 4:
            break
    return inside or [low, high]


def _cover(axes: Axes, broken: npt.NDArray[np.bool_]) -> None:
    """NaN in its own colour, over the place of what was not measured."""
    from matplotlib.colors import ListedColormap

    alone = np.ma.array(np.ones(broken.shape), mask=~broken)
    axes.imshow(alone, aspect="auto", cmap=ListedColormap([NOT_A_NUMBER]), interpolation="nearest")


def _label_axes(
    axes: Axes, names: Sequence[str], steps: npt.NDArray[np.int64], marked: set[int]
) -> None:
    """Site names, those with findings always among them, and the steps of some captures."""
    every = math.ceil(len(names) / MOST_NAMES)
    regular = range(0, len(names), every)
    free = (row for row in regular if all(abs(row - other) >= every for other in marked))
    at = sorted({*free, *marked})
    start = common_start(names) if any(len(name) > NAME for name in names) else ""
    labels = [shorten(names[row][len(start) :], NAME) for row in at]
    axes.set_yticks(at, labels, fontsize=8, family="monospace")
    axes.set_ylabel(f"site, below {start.removesuffix('.')}" if start else "site")
    columns = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), 12)).round().astype(int))
    axes.set_xticks(columns, [str(int(steps[column])) for column in columns], fontsize=9)
    axes.set_xlabel("optimizer step (one column a capture)")
    axes.tick_params(length=2)


def _mark(
    axes: Axes, names: Sequence[str], steps: npt.NDArray[np.int64], marks: Sequence[Mark]
) -> None:
    """A frame around the steps of each finding, its code at the right edge."""
    from matplotlib.patches import Rectangle

    codes: dict[str, list[str]] = {}
    for mark in marks:
        first = int(np.searchsorted(steps, mark.finding.first_step, side="left"))
        last = int(np.searchsorted(steps, mark.finding.last_step, side="right"))
        row = names.index(mark.column)
        left, right = min(first, len(steps) - 1), max(last, first + 1)
        box = (left - 0.5, row - 0.5), min(right, len(steps)) - left, 1.0
        for width, colour in ((3.5, "white"), (1.5, "black")):
            axes.add_patch(Rectangle(*box, fill=False, linewidth=width, edgecolor=colour))
        held = codes.setdefault(mark.column, [])
        if mark.finding.code not in held:
            held.append(mark.finding.code)
    for column, held in codes.items():
        axes.annotate(
            " ".join(held[:2]) + (" ..." if len(held) > 2 else ""),
            xy=(1.0, names.index(column)), xycoords=axes.get_yaxis_transform(),
            xytext=(4, 0), textcoords="offset points",
            fontsize=8, fontweight="bold", va="center", annotation_clip=False,
        )  # fmt: skip


def _explain(axes: Axes, missing: Any, broken: Any, zero: bool) -> None:
    """A legend for the colours that are not on the scale."""
    from matplotlib.patches import Patch

    shown = ((missing, MISSING, "not measured"), (broken, NOT_A_NUMBER, "NaN"), (zero, ZERO, "0"))
    patches = [Patch(facecolor=colour, label=words) for there, colour, words in shown if there]
    if patches:
        axes.legend(
            handles=patches, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3,
            frameon=False, fontsize=9, borderaxespad=0.2, handlelength=1.2,
        )  # fmt: skip
