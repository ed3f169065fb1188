"""What a link of the chain is: a question to a pair of arms, with its criterion in words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skipscope.evidence.outcome import ArmFacts, Evidence, Outcome
from skipscope.evidence.runs import arms_of, depths, of_arm
from skipscope.evidence.statistics import keeps, reaches
from skipscope.evidence.verdict import Answer, Check
from skipscope.reports._text import NUMBER, exact, number

SHORTCUT = ("shortcut", "the shortcut", "shortcuts", "the shortcuts")
POINT = 0.01  #: of an error, which goes from 0 to 1


@dataclass(frozen=True)
class Pair:
    """The two arms that a chain is about, within their study."""

    evidence: Evidence
    plain: ArmFacts
    residual: ArmFacts

    def runs(self, arm: ArmFacts, depth: int | None = None) -> tuple[Outcome, ...]:
        """Runs of an arm at the rate of the main comparison."""
        return of_arm(self.evidence, arm.name, depth)

    def depths(self, *arms: ArmFacts) -> list[int]:
        """The depths at which all of these arms ran, shallowest first."""
        each = [set(depths(self.runs(arm))) for arm in arms]
        return sorted(set.intersection(*each)) if each else []

    def others(self, *roles: str) -> list[ArmFacts]:
        """The arms of the same pair with one of these roles, in the study's order."""
        return [a for a in arms_of(self.evidence, self.plain.pair) if a.role in roles]


def is_one_factor(arm: ArmFacts) -> bool:
    """Whether an arm differs from the plain one of its pair in the shortcut alone, as it says."""
    return arm.differs.strip().lower() in SHORTCUT


@dataclass(frozen=True)
class Kind:
    """A link: what it claims, when that counts as shown, and the function that looks."""

    name: str
    claim: str
    criterion: str
    ask: Callable[[Pair], Answer]


def points(share: float) -> str:
    """A difference of two errors in points.

    >>> points(0.05), points(-0.0032)
    ('+5.0 points', '-0.3 points')
    """
    return f"{100 * share:+.1f} points"


def percent(share: float) -> str:
    """A share in percent, to the tenth.

    >>> percent(0.0349), percent(1.0)
    ('3.5', '100.0')
    """
    return f"{100 * share:.1f}"


def every_seed(count: int) -> str:
    """All seeds, in words; that there is but one.

    >>> every_seed(3), every_seed(1)
    ('every seed', 'the only seed')
    """
    return "the only seed" if count == 1 else "every seed"


def times(value: float) -> str:
    """A ratio.

    >>> times(157.8), times(math.inf), times(math.nan)
    ('x158', 'unbounded', 'undefined')
    """
    if math.isinf(value):
        return "unbounded"
    return "undefined" if math.isnan(value) else f"x{number(value)}"


def at_least(what: str, value: float, limit: float, text: str, words: str) -> Check:
    """A number that has to reach its limit."""
    return _against(what, (value, limit), (text, words), ">=", reaches(value, limit))


def at_most(what: str, value: float, limit: float, text: str, words: str) -> Check:
    """A number that must not pass its limit."""
    return _against(what, (value, limit), (text, words), "<=", keeps(value, limit))


def _against(
    what: str, both: tuple[float, float], words: tuple[str, str], sign: str, met: bool
) -> Check:
    """A number and its limit, in digits that show which side it is on where it is the wrong one."""
    value, limit = both
    if not met:
        needed = exact(words[1], limit, value)
        digits = re.search(NUMBER, needed)
        words = exact(words[0], value, float(digits[0]) if digits else limit), needed
    return Check(what, value, words[0], f"{sign} {words[1]}", met)


def decided(checks: Sequence[Check], shown: str, notes: Sequence[str] = ()) -> Answer:
    """Shown when every check is met; otherwise the reason names those that are not."""
    failed = [check for check in checks if not check.met]
    if not failed:
        return Answer("shown", shown, tuple(checks), tuple(notes))
    return Answer("not shown", unmet(failed), tuple(checks), tuple(notes))


def unmet(checks: Sequence[Check]) -> str:
    """What was measured where a criterion is not met."""
    return "; ".join(f"{check.what}: {check.text}, needs {check.limit}" for check in checks)


def one_depth(arm: ArmFacts, found: Sequence[int]) -> Answer:
    """A link that compares depths, where an arm ran at one of them or none."""
    at = f"depth {found[0]} only" if found else "no depth"
    return not_applicable(f"{arm.name} ran at {at}, two are needed")


def straw_man(pair: Pair, checks: Sequence[Check] = ()) -> Answer:
    """A link that compares with the plain arm, where that never had a chance."""
    words = f"{pair.plain.name} is no fair comparison: {pair.plain.straw_man}"
    return not_applicable(words, checks)


def not_applicable(reason: str, checks: Sequence[Check] = ()) -> Answer:
    """What the link asks for is not in this study."""
    return Answer("not applicable", reason, tuple(checks))
