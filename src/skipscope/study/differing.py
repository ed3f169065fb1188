"""In what two configurations of a study differ, in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from skipscope.study.arms import Arm
from skipscope.study.made_of import words

#: What a user sets in a word or a number; of the rest only that it is another says something.
_TOLD = (
    "depths", "seeds", "learning rates", "steps", "batch size", "optimizer", "optimizer made by",
    "loss", "error", "projections", "device", "python", "torch",
)  # fmt: skip

ARM = "arm "  #: begins the name of what is said of an arm

#: What `arm_words` says, part by part; a start may hold commas of its own.
_PARTS = re.compile(
    r"(?P<role>.+?), shortcut (?P<shortcut>.+?), branch x (?P<branch>.+?), start (?P<start>.+), "
    r"warm-up (?P<warmup>.+?), model (?P<model>.+?), weights (?P<weights>.+)"
)
#: Parts that are told as they are, by what they are called there.
_WRITTEN = {
    "role": "role", "shortcut": "shortcut", "branch": "branch x", "start": "start",
    "warmup": "warm-up",
}  # fmt: skip
#: Of the others the first that differs says it: another model has other weights.
_HASHED = {"model": "another model", "weights": "other initial weights"}


def arm_words(arm: Arm, model: str, weights: str) -> str:
    """How an arm adds, starts and trains.

    Args:
        arm: the arm.
        model: a hash of its model's wiring.
        weights: one of the weights.
    """
    start = words(arm.start) if arm.start is not None else "as made"
    return (
        f"{arm.facts.role}, shortcut {arm.shortcut}, branch x {arm.branch_scale:g}, start {start}, "
        f"warm-up {arm.warmup}, model {model}, weights {weights}"
    )


def differences(found: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """In what two configurations differ, in words; "" where they do not.

    >>> differences({"steps": "10", "data": "4f0a"}, {"steps": "20", "data": "9c31"})
    'steps 10 there, 20 here; other data'
    """
    differ = {key for key in (*found, *wanted) if found.get(key) != wanted.get(key)}
    told = [
        f"{key} {found.get(key, 'not set')} there, {wanted.get(key, 'not set')} here"
        for key in _TOLD
        if key in differ
    ]
    arms = {key for key in (*found, *wanted) if key.startswith(ARM)}
    rest = sorted(differ - {*_TOLD, *arms, "cells"})
    told += [*_arms(found, wanted), *(f"other {key}" for key in rest)]
    return "; ".join(told or sorted(differ))


def _arms(found: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[str]:
    """What differs in the arms, said once of those of which the same is to be said."""
    arms = [key for key in dict.fromkeys((*found, *wanted)) if key.startswith(ARM)]
    by_words: dict[str, list[str]] = {}
    for key in arms:
        if found.get(key) != wanted.get(key):
            own = _arm(found.get(key), wanted.get(key))
            by_words.setdefault(own, []).append(key.removeprefix(ARM))
    for said, names in by_words.items():
        every = len(names) == len(arms) > 1
        which = "all arms" if every else f"arm{'s' * (len(names) > 1)} {', '.join(names)}"
        yield f"{which}: {said}"


def _arm(there: str | None, here: str | None) -> str:
    if there is None or here is None:
        return "only here" if there is None else "only there"
    one, other = (_PARTS.fullmatch(text) for text in (there, here))
    if one is None or other is None:
        return "another arm of this name"
    changed = [name for name in _PARTS.groupindex if one[name] != other[name]]
    told = [
        f"{_WRITTEN[name]} {one[name]} there, {other[name]} here"
        for name in changed
        if name in _WRITTEN
    ]
    told += [_HASHED[name] for name in changed if name in _HASHED][:1]
    return ", ".join(told)
