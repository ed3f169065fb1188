"""A study's verdict as one page: no script, nothing to load, in light and in dark."""

from __future__ import annotations

from importlib.resources import files

from skipscope.evidence.outcome import Evidence
from skipscope.evidence.plots import plots
from skipscope.evidence.reports import _grids
from skipscope.evidence.verdict import Verdict
from skipscope.reports._text import visible

TEMPLATE = "page.html.jinja"


def html(evidence: Evidence, verdict: Verdict) -> str:
    """The verdict as an HTML document; every name is escaped by the template engine."""
    import jinja2
    from markupsafe import Markup

    source = files("skipscope.evidence.reports").joinpath(TEMPLATE).read_text(encoding="utf-8")
    engine = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    pairs = list(dict.fromkeys(arm.pair for arm in evidence.arms))
    drawn = {pair: plots(evidence, pair) for pair in pairs}
    return engine.from_string(source).render(
        evidence=evidence,
        verdict=verdict,
        grids=_grids,
        pairs=[pair for pair in pairs if drawn[pair]],
        plots=drawn,
        svg=Markup,  # matplotlib has escaped what stands in its SVG
    )
