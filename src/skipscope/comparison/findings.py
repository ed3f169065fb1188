"""Findings of two runs: gained, lost, kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from skipscope.comparison.records import FindingPair
from skipscope.records import Diagnosis, Finding
from skipscope.reports._text import listed

ORDER = {"error": 0, "warning": 1, "info": 2}
KINDS = {"gained": 0, "lost": 1, "kept": 2}


def pair_findings(a: Diagnosis, b: Diagnosis, by_place: bool) -> tuple[FindingPair, ...]:
    """Every finding that stands, roots and what follows from them.

    The same one is one rule at places of the same names; where names do not compare
    (`by_place` False), one rule.
    """
    left_a, left_b = _standing(a), _standing(b)
    kept: list[FindingPair] = []
    tests: list[Callable[[Finding, Finding], bool]] = [
        lambda one, two: one.where == two.where,
        lambda one, two: bool({*one.where} & {*two.where}),
    ]
    for same in tests if by_place else [*tests, lambda one, two: True]:
        for one in list(left_a):
            two = next((f for f in left_b if f.code == one.code and same(one, f)), None)
            if two is not None:
                left_a.remove(one)
                left_b.remove(two)
                kept.append(_pair(one, two, ""))
    lost = [_pair(one, None, _other(one.code, b)) for one in left_a]
    gained = [_pair(None, two, _other(two.code, a)) for two in left_b]
    return tuple(sorted([*gained, *lost, *kept], key=_place))


def _standing(diagnosis: Diagnosis) -> list[Finding]:
    return [finding for finding in diagnosis.findings if finding.status != "resolved"]


def _place(pair: FindingPair) -> tuple[int, int, str]:
    return (KINDS[pair.change], ORDER[pair.severity_b or pair.severity_a], pair.code)


def _pair(a: Finding | None, b: Finding | None, other: str) -> FindingPair:
    some = next(one for one in (b, a) if one is not None)
    return FindingPair(
        change="kept" if a and b else "lost" if a else "gained",
        code=some.code,
        name=some.name,
        severity_a=a.severity if a else "",
        severity_b=b.severity if b else "",
        where_a=a.where if a else (),
        where_b=b.where if b else (),
        message_a=a.message if a else "",
        message_b=b.message if b else "",
        other=other,
    )


def _other(code: str, diagnosis: Diagnosis) -> str:
    """What a rule says of a run that does not have the finding: no finding is not always health."""
    return next(_words(code, diagnosis), "the rule was not asked there")


def _words(code: str, diagnosis: Diagnosis) -> Iterator[str]:
    for finding in _standing(diagnosis):
        if finding.code == code:
            yield f"found at {listed(finding.where, 2)} there"
    for ended in diagnosis.findings:
        if ended.code == code:
            yield "has ended there"
    for skip in diagnosis.skipped:
        if skip.code == code:
            yield f"could not look there: {skip.reason}"
    for passed in diagnosis.passed:
        if passed.code == code:
            yield "passed there"
