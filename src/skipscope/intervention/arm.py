"""What an intervention is to do, and at which sites."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from skipscope.records import Site, SiteMap
from skipscope.selection import ROOT, Classes, among, asked, chosen, unknown

Projections = Literal["keep", "cut"]

_KEPT = "a projection, whose P(x) is kept"
_NESTED = "nested: inside the branch of another site"
_NOT_NAMED = "not named"
_AS_IT_IS = "nothing to change: shortcut kept and branch scale 1"


def scale_of(value: Any) -> float:
    """A branch scale as a float.

    Raises:
        ValueError: it is no finite number.

    >>> scale_of(1)
    1.0
    """
    try:
        found = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: a tensor of several
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"intervene: branch_scale is a finite number, got {value!r}")
    return found


@dataclass(frozen=True)
class Arm:
    """What names the sites (None: all at block level), and the sum wanted there."""

    names: tuple[str, ...] | None
    branch_scale: float
    shortcut: bool
    projections: Projections

    @classmethod
    def wanted(
        cls,
        sites: str | Sequence[str] | None,
        branch_scale: Any,
        shortcut: bool,
        projections: Projections,
    ) -> Arm:
        """What a caller asks for.

        Raises:
            ValueError: an argument makes no sense.
        """
        return cls(asked("intervene", sites), scale_of(branch_scale), shortcut, projections)

    def __post_init__(self) -> None:
        if not isinstance(self.shortcut, bool):  # "no" and 0.5 would both count as kept
            raise ValueError(f"intervene: shortcut is True or False, got {self.shortcut!r}")
        if self.projections not in ("keep", "cut"):
            raise ValueError(f'intervene: projections is "keep" or "cut", got {self.projections!r}')

    @property
    def changes(self) -> bool:
        """Whether another sum than the model's own is wanted."""
        return not self.shortcut or self.branch_scale != 1.0

    @property
    def sum(self) -> str:
        """The sum at a site that is no projection."""
        size = abs(self.branch_scale)
        branch = "F" if size == 1.0 else f"{size:g} F"
        if self.shortcut:
            return f"y = s {'-' if self.branch_scale < 0 else '+'} {branch}"
        return f"y = {'-' if self.branch_scale < 0 else ''}{branch}"

    def __str__(self) -> str:
        """What is wanted, before it is known whether there are projections."""
        kept = not self.shortcut and self.projections == "keep"
        return f"{self.sum}, any P(x) kept" if kept else self.sum

    @property
    def told(self) -> str:
        """What is wanted, and by what names where not everywhere, for those who read of the run."""
        return str(self) if self.names is None else f"{self} at {', '.join(self.names)}"

    def check_paths(self, classes: Classes) -> None:
        """Before any site is known: whether each name can be that of a site.

        Raises:
            ValueError: one fits no module, nor a part of one.
        """
        for name in self.names or ():
            module = name.partition("/")[0]  # of a site's name the part that is a path
            near_it = None if module == ROOT else unknown(module, classes)
            if near_it is not None:
                raise ValueError(
                    f"intervene: no site or module is named {name!r} (find_residuals lists the "
                    f"sites){near_it}"
                )

    def named(self, known: SiteMap) -> frozenset[int]:
        """Indices of the sites that are named; all at block level where no names were given."""
        if self.names is None:
            return frozenset(site.index for site in known.block_level)
        return among(known, self.names)

    def check_names(self, known: SiteMap) -> None:
        """Whether every name is that of a site, or of modules with some.

        Raises:
            ValueError: one is not.
        """
        if self.names is not None:
            chosen(known, self.names, "intervene")

    def keeps_shortcut(self, site: Site) -> bool:
        """Whether a site's shortcut is added."""
        return self.shortcut or (site.kind == "projection" and self.projections == "keep")

    def why_not(self, site: Site, named: Collection[int]) -> str:
        """Why a site is left as it is; "" where it is acted on."""
        if site.index not in named:
            return _NESTED if self.names is None else _NOT_NAMED
        if not self.changes:
            return _AS_IT_IS
        return _KEPT if self.branch_scale == 1.0 and self.keeps_shortcut(site) else ""
