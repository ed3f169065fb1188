"""From a history and its diagnosis to the one view that every format shows.

Numbers are looked up in tables and in the diagnosis; the only arithmetic here is picking the last
capture, medians for display, and the share of step time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

import skipscope.measures  # noqa: F401  tells History.table how to make tables
from skipscope.records import REASONS, Diagnosis, Finding, Site, Skipped
from skipscope.reports import _expected
from skipscope.reports._text import Number
from skipscope.reports._view import CostView, Root, SiteRow, StreamView, UpdatesView, View

if TYPE_CHECKING:
    from skipscope.history import History, Table

#: Columns of the profile along depth: attribute of `SiteRow` -> measure.
PROFILE = {
    "branch_ratio": "branch_ratio",
    "branch_ratio_median": "branch_ratio_median",
    "cosine": "cosine",
    "growth": "growth",
    "gradient_gain": "gradient_gain",
    "update_ratio": "branch_update_ratio",
}
#: Numbers of a stream as a whole.
DEPTH = (
    "total_growth",
    "half_depth_growth",
    "half_depth_growth_without_largest",
    "residual_budget",
    "gradient_ratio",
    "depth_multiplier",
    "site_multiplier",
    "link_multiplier",
    "depth_factor",
)
TREND = 12  #: captures that a trend shows


def view(history: History, diagnosis: Diagnosis) -> View:
    """Collects what every report shows."""
    sites = history.sites
    ordered = sites.block_level + tuple(site for site in sites.sites if site.nested)
    rows = _rows(history, diagnosis, ordered)
    unmeasured: dict[str, list[str]] = {}
    for row in rows:
        if row.why:
            unmeasured.setdefault(row.why, []).append(row.name)
    roots = _roots(diagnosis)
    return View(
        run=history.run,
        groups=tuple(history.groups),
        step=diagnosis.step,
        epoch=diagnosis.epoch,
        roots=tuple(root for root in roots if root.finding.status != "resolved"),
        resolved=tuple(root for root in roots if root.finding.status == "resolved"),
        sites=rows,
        streams=_streams(history, rows),
        expected=_expected.of_profile(sites.block_level),
        updates=updates(history),
        passed=tuple((rule.code, rule.name) for rule in diagnosis.passed),
        skipped=_by_reason(diagnosis.skipped),
        in_part=_by_reason(diagnosis.in_part),
        unseen=sites.unseen,
        unmeasured=tuple((reason, tuple(names)) for reason, names in unmeasured.items()),
        cost=_cost(history),
    )


def _by_reason(skipped: Sequence[Skipped]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Each reason, with the codes of the rules that it keeps from looking."""
    groups: dict[str, list[str]] = {}
    for skip in skipped:
        groups.setdefault(skip.reason, []).append(skip.code)
    return tuple((reason, tuple(codes)) for reason, codes in groups.items())


def _last(table: Table) -> dict[str, Number]:
    """The numbers of the last row, None where nothing was measured."""
    if not len(table.steps):
        return {}
    row = zip(table.columns, table.values[-1], table.missing[-1], strict=True)
    return {column: None if missing else float(value) for column, value, missing in row}


def _latest(table: Table) -> dict[str, Number]:
    """The last number of each column that was measured at all.

    Updates rotate over a large model's blocks, so that no single row holds all of them.
    """
    seen = ~table.missing
    rows = len(table.steps) - 1 - np.argmax(seen[::-1], axis=0) if len(table.steps) else ()
    return {
        column: float(table.values[row, at]) if seen[row, at] else None
        for at, (column, row) in enumerate(zip(table.columns, rows, strict=False))
    }


def _trend(table: Table, column: str) -> tuple[Number, ...]:
    if column not in table.columns:
        return ()
    at = table.columns.index(column)
    values, missing = table.values[-TREND:, at], table.missing[-TREND:, at]
    return tuple(None if gone else float(v) for v, gone in zip(values, missing, strict=True))


def _rows(history: History, diagnosis: Diagnosis, ordered: Sequence[Site]) -> tuple[SiteRow, ...]:
    tables = {column: history.table(measure) for column, measure in PROFILE.items()}
    last = {column: _last(table) for column, table in tables.items()}
    last["update_ratio"] = _latest(tables["update_ratio"])
    marks = _marks(history, diagnosis)
    grave = {finding.code for finding in diagnosis.standing if finding.severity != "info"}
    why = history.why[-1] if len(history.why) else np.zeros(len(ordered), np.uint8)
    rows = []
    for site in ordered:
        pick = {column: numbers.get(site.name) for column, numbers in last.items()}
        rows.append(
            SiteRow(
                index=site.index,
                depth=site.depth,
                name=site.name,
                module=site.module,
                source=site.source,
                kind=site.kind,
                stream=site.stream,
                stage=site.stage,
                nested=site.nested,
                norm_placement=site.norm_placement,
                link=site.link,
                branch_ratio=pick["branch_ratio"],
                branch_ratio_median=pick["branch_ratio_median"],
                cosine=pick["cosine"],
                growth=pick["growth"],
                gradient_gain=pick["gradient_gain"],
                update_ratio=pick["update_ratio"],
                trend=_trend(tables["branch_ratio"], site.name),
                why=REASONS[why[site.index]] if site.index < len(why) else "",
                findings=marks.get(site.index, ()),
                grave=not grave.isdisjoint(marks.get(site.index, ())),
            )
        )
    return tuple(rows)


def sites_at(history: History, place: str) -> tuple[int, ...]:
    """Indices of the sites that a place in `Finding.where` means.

    A place is a site's name, a module path that holds sites, or the name of a parameter.
    """
    sites = history.sites.sites
    named = tuple(site.index for site in sites if site.name == place)
    inside = tuple(site.index for site in sites if f"{site.module}.".startswith(f"{place}."))
    if named or inside:
        return named or inside
    return next((one.sites for one in history.parameters if one.name == place), ())


def _marks(history: History, diagnosis: Diagnosis) -> dict[int, tuple[str, ...]]:
    """Codes of the root findings that stand at each site."""
    found: dict[int, dict[str, None]] = {}
    for finding in diagnosis.standing:
        for place in finding.where:
            for index in sites_at(history, place):
                found.setdefault(index, {})[finding.code] = None
    return {index: tuple(codes) for index, codes in found.items()}


def _roots(diagnosis: Diagnosis) -> tuple[Root, ...]:
    """Every root with its followers; a follower whose root is not there stands for itself."""
    roots = list(diagnosis.roots)
    held: list[list[Finding]] = [[] for _ in roots]
    for finding in diagnosis.findings:
        if finding.follows is None:
            continue
        code, place = finding.follows
        exact = [i for i, root in enumerate(roots) if root.code == code and place in root.where]
        loose = [i for i, root in enumerate(roots) if root.code == code]
        if exact or loose:
            held[(exact or loose)[0]].append(finding)
        else:
            roots.append(finding)
            held.append([])
    return tuple(Root(root, tuple(one)) for root, one in zip(roots, held, strict=True))


def _streams(history: History, rows: Sequence[SiteRow]) -> tuple[StreamView, ...]:
    last = {name: _last(history.table(name)) for name in DEPTH}
    streams = []
    for stream in history.sites.streams:
        grown = [
            (row.growth, row.name)
            for row in rows
            if row.stream == stream.index
            and not row.nested
            and row.growth is not None
            and not math.isnan(row.growth)
        ]
        largest, at = max(grown, default=(None, ""))
        stages = len({history.sites.sites[index].stage for index in stream.sites})
        streams.append(
            StreamView(
                index=stream.index,
                sites=len(stream.sites),
                pure=stream.pure,
                numbers={n: row.get(f"stream {stream.index}") for n, row in last.items()},
                largest_growth=largest,
                largest_growth_site=at,
                expected=_expected.of_stream(len(stream.sites), stages),
            )
        )
    return tuple(streams)


def updates(history: History) -> UpdatesView:
    """What the optimizer did."""
    ratios = _latest(history.table("update_ratio"))
    trainable = [parameter for parameter in history.parameters if parameter.trainable]
    known = {p.name: v for p in trainable if (v := ratios.get(p.name)) is not None}
    matrices = [known[p.name] for p in trainable if len(p.shape) >= 2 and p.name in known]
    skipped = history.fact("skipped")
    return UpdatesView(
        step=int(history.update_steps[-1]) if len(history.update_steps) else None,
        median=float(np.median(matrices)) if matrices else None,
        measured=len(known),
        trainable=len(trainable),
        frozen=len(history.parameters) - len(trainable),
        skipped=int(np.nansum(skipped)),
        steps=int(np.count_nonzero(~np.isnan(skipped))),
        loss=next(iter(_latest(history.table("loss")).values()), None),
        lr=tuple(_latest(history.table("lr")).values()),
        loss_scale=next(iter(_latest(history.table("loss_scale")).values()), None),
        expected=_expected.of_updates(history.groups),
    )


def _cost(history: History) -> CostView:
    captured = history.fact("captured") > 0
    seconds, host = history.fact("seconds"), history.fact("host_ms")

    def median(values: np.ndarray) -> Number:
        finite = values[np.isfinite(values)]
        return float(np.median(finite)) if len(finite) else None

    slow, fast = median(seconds[captured]), median(seconds[~captured])
    share = None
    if slow is not None and fast is not None and slow > fast:
        # By medians: what happened between steps (a validation, a checkpoint) is none of ours.
        among, others = int(captured.sum()), int((~captured).sum())
        share = (slow - fast) * among / (slow * among + fast * others)
    return CostView(
        captures=len(history.capture_steps),
        captured_seconds=slow,
        other_seconds=fast,
        host_ms=median(host[captured]),
        share=share,
    )
