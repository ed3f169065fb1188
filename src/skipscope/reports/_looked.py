"""Which rules looked, which only in part, and what kept the others from it, in short."""

from __future__ import annotations

from collections.abc import Sequence

from skipscope.reports._view import View


def passed(view: View) -> str:
    """Codes of the rules that looked and found nothing."""
    codes = [code for code, _ in view.passed]
    return f"{len(codes)}: {_codes(codes)}" if codes else "no rule"


def _codes(codes: Sequence[str]) -> str:
    """Codes in a row, their common start said once: RES101 103 201."""
    start = codes[0].rstrip("0123456789")
    return " ".join([codes[0], *(code.removeprefix(start) for code in codes[1:])])


def skipped(view: View) -> list[str]:
    """One clause a reason: how many rules could not look, and which."""
    return reasons(view.skipped)


def reasons(groups: Sequence[tuple[str, tuple[str, ...]]]) -> list[str]:
    """One clause a reason, with the rules that it holds for."""
    return [f"{len(codes)}: {reason} ({_codes(codes)})" for reason, codes in groups]


def in_part(view: View) -> str:
    """In one line which rules looked with a part left out, and the part where it has a name."""
    parts: dict[str, list[str]] = {}
    for reason, codes in view.in_part:
        part, named, _ = reason.partition(": ")
        for code in codes:
            parts.setdefault(code, []).extend([part] if named else [])
    ordered = sorted(parts)
    written = [
        f"{short} (not {', '.join(parts[code])})" if parts[code] else short
        for code, short in zip(ordered, _codes(ordered).split(), strict=True)
    ]
    return f"{len(ordered)}: {' '.join(written)}"
