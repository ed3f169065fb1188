"""Write docs/measures.md, the table of all measures, from their names, units and docstrings.

python docs/generate_measures.py
"""

from __future__ import annotations

from pathlib import Path

from skipscope.measure import Measure
from skipscope.measures import MEASURES

FILE = Path(__file__).parent / "measures.md"
HEAD = """<!-- Written by docs/generate_measures.py from the measures. -->

# Measures

A measure is a formula over the sums that a capture keeps of each site (`skipscope.records.SUMS`),
over those of each parameter, or over the facts of each step. `history.table(name)` gives it over
time: one row a capture (or step), one column a site, stream, parameter and so on.

Levels are root mean squares (RMS), so that tensors of different shape compare. Ratios have no unit.
Gradient norms are raw L2 norms: they depend on the batch and on the reduction of the loss, and
compare within one step only. Sums run over the whole tensor; the median over rows is the one
exception.
"""
AXES = {
    "site": ("Sites", "One column a site."),
    "stream": ("Streams", "One column a stream, over its block-level sites along depth."),
    "stage": (
        "Stages",
        "The same for each stage of a stream: sites of one shape, batch aside, tokens flat or not.",
    ),
    "parameter": ("Parameters", "One column a parameter, on the steps of the updates schedule."),
    "block": ("Blocks", "Sums over the parameters of a block."),
    "branch": ("Branches", "Sums over the parameters of a site's branch, one column a site."),
    "step": ("Steps", "One row an optimizer step."),
}


def row(measure: Measure) -> str:
    """One line of a table."""
    words = " ".join(measure.doc.split("\n\n", 1)[0].split())
    cells = (f"`{measure.name}`", measure.unit, measure.label, words)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for axis, (title, about) in AXES.items():
        rows = [row(measure) for measure in MEASURES.values() if measure.axis == axis]
        table = "\n".join(["| name | unit | label | what it is |", "|---|---|---|---|", *rows])
        parts.append(f"## {title}\n\n{about}\n\n{table}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
