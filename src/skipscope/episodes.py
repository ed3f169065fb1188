"""Episodes: whether a finding is new, goes on, or has ended, since the last report of its run.

A rule need not remember. It yields what it sees in the history, an episode that is over too; here
alone it is decided when an episode has ended (`settle`), and what a report has said of it already
(`compare`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Finding, Severity, Status
from skipscope.rule import Inputs, NotMeasurable, Rule

#: From mild to grave.
GRAVITY: Mapping[Severity, int] = {"info": 0, "warning": 1, "error": 2}


def settle(finding: Finding, rule: Rule, inputs: Inputs, *, stands: bool = False) -> Finding:
    """The finding, resolved where its episode has ended.

    It takes as long to clear as to appear: an episode has ended when its rule could look at its
    places in `patience` later steps and saw it in none of them.

    Args:
        finding: as its rule yields it.
        rule: the rule, with the patience that holds.
        inputs: what the rule looked at.
        stands: the rule itself tells when it ends, by not yielding it any more.
    """
    later = int(np.sum(looks(rule, inputs, finding.where) > finding.last_step))
    ended = not stands and later >= max(rule.patience, 1)
    return replace(finding, status="resolved" if ended else "new", ongoing=not later)


def looks(rule: Rule, inputs: Inputs, where: Sequence[str]) -> npt.NDArray[np.int64]:
    """The steps in which a rule could look at these places.

    Those in which every table that it needs was measured there: in a column of that name, or of a
    part of it, or in any column where the table has none. A value that is not finite is no look: a
    stream at NaN has not recovered. A rule that needs no table looks at those
    that it can do without, or else at each capture.
    """
    tables = {
        name: table
        for name in rule.inputs
        if isinstance(table := inputs.get(name), Table) and len(table.steps)
    }
    needed = [table for name, table in tables.items() if name not in rule.optional]
    steps = [_measured(table, where) for table in needed or tables.values()]
    if steps:
        return reduce(np.intersect1d, steps)
    captures = inputs.get("captures")
    return np.zeros(0, np.int64) if captures is None else np.asarray(captures, np.int64)


def _measured(table: Table, where: Sequence[str]) -> npt.NDArray[np.int64]:
    at = [k for k, name in enumerate(table.columns) if any(_touches(name, p) for p in where)]
    seen = ~table.missing & np.isfinite(table.values)
    steps: npt.NDArray[np.int64] = table.steps[(seen[:, at] if at else seen).any(axis=1)]
    return steps


def _touches(column: str, place: str) -> bool:
    """Whether one is the other, or a part of it: `blocks.1`, `blocks.1/attn`, `blocks.1.norm`."""
    shorter, longer = sorted((column, place), key=len)
    return longer == shorter or longer.startswith((f"{shorter}.", f"{shorter}/"))


def earliest(finding: Finding, rule: Rule, inputs: Inputs) -> int:
    """The earliest step at which what a finding names can have begun.

    That is after the last step in which its rule could look at its places and did not see it: a
    rule that waits for the end of warm-up, or for a capture, finds late what began before.
    """
    try:
        start = rule.gate(inputs).start
    except NotMeasurable:
        return 0
    before = looks(rule, inputs, finding.where)
    before = before[(before >= start) & (before < finding.first_step)]
    return int(before[-1]) + 1 if len(before) else 0


def compare(
    findings: Sequence[Finding], known: Sequence[Finding], looked: Set[str]
) -> list[Finding]:
    """The findings with their status against the last report's, and those that no rule yields now.

    Args:
        findings: what the rules yield now, settled.
        known: what the last report had.
        looked: codes of the rules that could look. One that could not says nothing against what it
            found before, which goes on.
    """
    return [
        *(_compared(finding, known) for finding in findings),
        *(
            _missed(old, looked)
            for old in known
            if not any(_goes_on_in(old, finding) for finding in findings)
        ),
    ]


def lift(findings: Sequence[Finding], known: Sequence[Finding]) -> list[Finding]:
    """A root stands as long as something is seen that follows from it, and ends with all of that.

    What follows and is no longer seen, a fact about the start say, does not keep it.
    """
    effects = {one.follows for one in findings if one.follows and one.ongoing}
    ended = {
        _place(one)
        for one in findings
        if not one.follows and one.status == "resolved" and _place(one) not in effects
    }

    def settled(finding: Finding) -> Finding:
        if finding.follows:
            over = finding.follows in ended
            return replace(finding, status="resolved") if over else finding
        lifted = finding.status == "resolved" and _place(finding) in effects
        return _standing(finding, known) if lifted else finding

    return [settled(finding) for finding in findings]


def weigh(findings: Sequence[Finding], known: Sequence[Finding]) -> list[Finding]:
    """A root is as grave as the gravest that follows from it: a warning must not hide an error.

    Of a root that stands, what has ended does not count.
    """

    def weighed(root: Finding) -> Finding:
        if root.follows:
            return root
        over = root.status == "resolved"
        effects = [one for one in findings if one.follows == _place(root)]
        counting = [one for one in effects if over or one.status != "resolved"]
        gravest = max([root, *counting], key=lambda one: GRAVITY[one.severity])
        if gravest is root:
            return root
        by = {"severity by": f"{gravest.code} {gravest.name}"}
        raised = replace(root, severity=gravest.severity, evidence={**root.evidence, **by})
        return raised if over else _standing(raised, known)

    return [weighed(finding) for finding in findings]


def _place(finding: Finding) -> tuple[str, str]:
    """What `Finding.follows` names a root by."""
    return finding.code, finding.where[0]


def _standing(finding: Finding, known: Sequence[Finding]) -> Finding:
    """New is what the last report did not have: another place, less grave there, or ended."""
    before = [old for old in known if old.code == finding.code and old.status != "resolved"]
    places = {place for old in before for place in old.where}
    gravest = max((GRAVITY[old.severity] for old in before), default=-1)
    new = not places.issuperset(finding.where) or GRAVITY[finding.severity] > gravest
    status: Status = "new" if new else "continuing"
    return replace(finding, status=status)


def _compared(finding: Finding, known: Sequence[Finding]) -> Finding:
    """What a report has called resolved comes back only when it is seen again."""
    ended = [old for old in known if old.status == "resolved" and _goes_on_in(old, finding)]
    if finding.status == "resolved" or any(old.last_step >= finding.last_step for old in ended):
        return replace(finding, status="resolved", told=bool(ended))
    return _standing(finding, known)


def _missed(old: Finding, looked: Set[str]) -> Finding:
    if old.status == "resolved":
        return replace(old, told=True)
    return replace(old, status="resolved" if old.code in looked else "continuing", ongoing=False)


def _goes_on_in(old: Finding, finding: Finding) -> bool:
    """Whether a finding stands for an older one: same rule, a common place; ended: same time."""
    if old.code != finding.code or set(old.where).isdisjoint(finding.where):
        return False
    return old.status != "resolved" or finding.first_step <= old.last_step
