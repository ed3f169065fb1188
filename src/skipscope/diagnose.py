"""From a history to a diagnosis: every rule found something, passed, or could not look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from skipscope.episodes import compare, earliest, lift, settle, weigh
from skipscope.history import History
from skipscope.names import check_list, near
from skipscope.records import Diagnosis, Finding, Passed, Site, SiteMap, Skipped
from skipscope.rule import Hit, Inputs, NotMeasurable, Rule
from skipscope.rules import RULES


def diagnose(
    history: History,
    *,
    select: Iterable[str] | None = None,
    ignore: Iterable[str] | None = None,
    thresholds: Mapping[str, Mapping[str, float]] | None = None,
    previous: Diagnosis | None = None,
    failed: Callable[[Rule, Exception], None] | None = None,
) -> Diagnosis:
    """Let the rules look at a history.

    Args:
        history: what was recorded.
        select: rules that look, all where None: codes ("RES101"), names ("branch-dominance") or
            the start of codes ("RES1").
        ignore: rules that do not.
        thresholds: rule to threshold to value; `patience` and `min_steps` are thresholds too.
        previous: that of the last report of this run, from which `Finding.status` is told. What it
            held and no rule yields any more is carried on as resolved.
        failed: takes an error of a rule, which then counts as skipped; None lets it through.

    Raises:
        ValueError: no such rule or threshold, naming those that come near.

    >>> diagnose(History(), select=["RES901"]).skipped[0].reason
    'needs a capture, has none'
    """
    chosen = choose(select, ignore)
    overrides = _by_code(thresholds or {})
    inputs = Inputs({}, history)
    findings: list[Finding] = []
    passed: list[Passed] = []
    skipped: list[Skipped] = []
    in_part: list[Skipped] = []
    for rule in chosen:
        rule = rule.with_overrides(overrides.get(rule.code, {}))
        try:
            hits, left_out = rule.look(inputs)
        except NotMeasurable as reason:
            skipped.append(Skipped(rule.code, rule.name, str(reason)))
            continue
        except Exception as error:
            if failed is None:
                raise
            failed(rule, error)
            skipped.append(Skipped(rule.code, rule.name, "an error of its own, see the log"))
            continue
        findings += [
            settle(_finding(rule, hit), rule, inputs, stands=hit.stands or rule.initial_only)
            for hit in hits
        ]
        in_part += [Skipped(rule.code, rule.name, reason) for reason in left_out]
        if not hits:
            passed.append(Passed(rule.code, rule.name))
    looked = {rule.code for rule in chosen} - {skip.code for skip in skipped}
    known = [f for f in previous.findings if f.code in {r.code for r in chosen}] if previous else []
    compared = compare(findings, known, looked)
    open_ = [f for f in compared if not f.told]
    rules = {rule.code: rule for rule in chosen}
    since = [earliest(finding, rules[finding.code], inputs) for finding in open_]
    grouped = lift(group(open_, chosen, history.sites, since), known)
    told = [f for f in compared if f.told]
    step, epoch = _now(history)
    found = (*weigh(grouped, known), *told)
    return Diagnosis(found, tuple(passed), tuple(skipped), step, epoch, tuple(in_part))


def choose(select: Iterable[str] | None, ignore: Iterable[str] | None) -> tuple[Rule, ...]:
    """The rules that look, in the order of the table.

    Raises:
        ValueError: no rule has this code or name, or a code that starts so.
    """
    wanted = RULES.keys() if select is None else _codes("select", select)
    unwanted = _codes("ignore", ignore or ())
    return tuple(r for code, r in RULES.items() if code in wanted and code not in unwanted)


def _codes(argument: str, names: Iterable[str]) -> set[str]:
    names = tuple(names) if isinstance(names, Iterator) else names
    check_list(argument, names)
    found: set[str] = set()
    for name in names:
        code, own = name.upper(), name.lower()
        matching = {c for c, r in RULES.items() if own == r.name or (code and c.startswith(code))}
        if not matching:
            close = near(name, RULES, [rule.name for rule in RULES.values()])
            raise ValueError(f"{argument}: no rule {name!r} (`skipscope rules` lists them){close}")
        found |= matching
    return found


def _by_code(thresholds: Any) -> dict[str, dict[str, float]]:
    """Overrides by code; all are checked, those of rules that do not look too."""
    if not isinstance(thresholds, Mapping) or any(not isinstance(n, str) for n in thresholds):
        raise ValueError(
            "thresholds must have rules with their thresholds, as in {'RES101': {'above': 6.0}}, "
            f"got {thresholds!r}"
        )
    found: dict[str, dict[str, float]] = {}
    for name, values in thresholds.items():
        if not isinstance(values, Mapping):
            raise ValueError(
                f"thresholds: {name!r} must have names of thresholds with their values, as in "
                f"{{'RES101': {{'above': 6.0}}}}, got {values!r}"
            )
        for code in _codes("thresholds", [name]):
            RULES[code].with_overrides(values)
            found.setdefault(code, {}).update(values)
    return found


def _finding(rule: Rule, hit: Hit) -> Finding:
    return Finding(
        code=rule.code,
        name=rule.name,
        severity=hit.severity or rule.severity,
        where=hit.where,
        first_step=hit.first_step,
        last_step=hit.last_step,
        message=hit.message,
        evidence={"value": hit.value, **hit.evidence},
        expectation=hit.expectation,
        cause=hit.cause,
        advice=(hit.advice or rule.advice)[:3],
    )


def group(
    findings: Sequence[Finding],
    rules: Sequence[Rule],
    sites: SiteMap,
    since: Sequence[int] | None = None,
) -> list[Finding]:
    """Tell for each finding from which root it follows.

    A finding at a site explains those of the codes in its rule's `explains` that lie at or after
    that site in its stream, or concern a whole stream, and those of `explains_here` at the same
    sites or within its places; one about a whole stream explains those of `explains_overall` that
    do too. One of a `whole_stream` rule, or at a module without a site, whose depth is unknown,
    explains those of `explains` anywhere. Nothing that ended before the root began follows from it,
    and nothing that was there at step 0 from what was not: no step had been taken. Later on limits
    of several heights see one process, and which is crossed first tells nothing.

    Args:
        findings: what was found.
        rules: those that looked.
        sites: of the model.
        since: for each finding the earliest step at which what it names can have begun
            (`episodes.earliest`); its first step where None.
    """
    begun = [finding.first_step for finding in findings] if since is None else since
    by_code = {rule.code: rule for rule in rules}
    spots = [
        frozenset() if by_code[finding.code].whole_stream else _spots(finding, sites)
        for finding in findings
    ]

    def explains(parent: int, child: int) -> bool:
        if begun[parent] > 0 and findings[child].first_step == 0:
            return False
        rule = by_code[findings[parent].code]
        anywhere = rule.whole_stream or _without_site(findings[parent], sites)
        return _explains(rule, parent, child, findings, spots, anywhere=anywhere)

    # Of two that could each explain the other the cause came first; of two in one step the one
    # about sites did: a forward shows it before the update.
    when = [(finding.first_step, not spots[i], i) for i, finding in enumerate(findings)]
    order = sorted(range(len(findings)), key=lambda i: (not spots[i], when[i]))
    parents: dict[int, int] = {}
    for child in range(len(findings)):
        for parent in order:
            later = when[parent] > when[child] and explains(child, parent)
            if explains(parent, child) and not later:
                parents[child] = parent
                break
    found = []
    for at, finding in enumerate(findings):
        root = _root(at, parents)
        follows = None if root == at else (findings[root].code, findings[root].where[0])
        found.append(replace(finding, follows=follows))
    return found


def _root(at: int, parents: Mapping[int, int]) -> int:
    seen = {at}
    while at in parents and parents[at] not in seen:
        at = parents[at]
        seen.add(at)
    return at


def _explains(
    rule: Rule,
    parent: int,
    child: int,
    findings: Sequence[Finding],
    spots: Sequence[frozenset[tuple[int, int]]],
    *,
    anywhere: bool,
) -> bool:
    if findings[parent].first_step > findings[child].last_step:
        return False
    if findings[parent].severity == "info" and findings[child].severity != "info":
        return False  # a note must not hide a warning
    if findings[child].code in rule.explains_here and _inside(findings[child], findings[parent]):
        return True
    if not spots[parent]:
        everywhere = rule.explains if anywhere and spots[child] else ()
        overall = rule.explains_overall if not spots[child] else ()
        return findings[child].code in (*everywhere, *overall)
    if findings[child].code in rule.explains_here:
        return bool(spots[child]) and spots[child] <= spots[parent]
    if findings[child].code not in rule.explains:
        return False
    return not spots[child] or all(
        any(stream == own and depth >= start for own, start in spots[parent])
        for stream, depth in spots[child]
    )


def _spots(finding: Finding, sites: SiteMap) -> frozenset[tuple[int, int]]:
    """Stream and depth of the sites that a finding names; none: a whole stream or model."""
    return frozenset(
        (site.stream, site.depth)
        for place in finding.where
        for site in sites.sites
        if _is_at(place, site)
    )


def _inside(child: Finding, parent: Finding) -> bool:
    """Whether every place of the one is, or is a part of, a place of the other.

    `blocks.1/mlp`, a site, is also the path of what its branch is made of: `blocks.1.mlp`.
    """
    ours, theirs = (
        [f"{place}.".replace("/", ".") for place in finding.where] for finding in (parent, child)
    )
    return all(any(one.startswith(other) for other in ours) for one in theirs)


def _without_site(finding: Finding, sites: SiteMap) -> bool:
    """Whether it names modules, and none of them is, holds or lies in a site's module."""
    modules = [site.module for site in sites.sites]
    return "model" not in finding.where and not any(
        f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")
        for one in finding.where
        for other in modules
    )


def _is_at(place: str, site: Site) -> bool:
    """Whether a place is a site's own, or a part of its block or branch."""
    if place in (site.name, site.module) or place in site.parameters:
        return True
    inside = f"{place}."
    if place == "model" or site.module.startswith(inside):
        return False  # a path that holds whole blocks stands for the stream
    below = bool(site.module) and place.startswith(f"{site.module}.")
    return below or any(name.startswith(inside) for name in site.parameters)


def _now(history: History) -> tuple[int, int]:
    """The last step and epoch known."""
    steps = [*history.capture_steps[-1:], *history.update_steps[-1:]]
    epochs = history.fact("epoch")
    if len(epochs):
        steps.append(np.int64(history.fact("step")[-1]))
    epoch = epochs[-1] if len(epochs) and np.isfinite(epochs[-1]) else 0
    return int(max(steps, default=0)), int(epoch)
