"""What an intervention is to do, and at which sites."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from skipscope.names import near
from skipscope.records import Site, SiteMap

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


def names_of(wanted: Any, caller: str) -> tuple[str, ...] | None:
    """Names of sites or module paths as they were given: one, several, or None for all.

    Raises:
        ValueError: what was given is none of these, or names nothing.

    >>> names_of("blocks.3", "intervene"), names_of(None, "intervene")
    (('blocks.3',), None)
    """
    if wanted is None:
        return None
    names = (wanted,) if isinstance(wanted, str) else wanted
    if not isinstance(names, Iterable):
        names = (wanted,)
    held = tuple(names)
    if not held:
        raise ValueError(
            f"{caller}: sites names none, got {wanted!r}; give names of sites or module paths, or "
            "None for all"
        )
    wrong = [name for name in held if not isinstance(name, str)]
    if wrong:
        raise ValueError(
            f"{caller}: sites are names of sites or module paths, or None for all, got "
            f'{wrong[0]!r}; give names such as "blocks.3"'
        )
    return held


@dataclass(frozen=True)
class Arm:
    """Names of sites or module paths (None: all at block level), and the sum wanted there."""

    names: tuple[str, ...] | None
    branch_scale: float
    shortcut: bool
    projections: Projections

    def __post_init__(self) -> None:
        if not isinstance(self.shortcut, bool):  # "no" and 0.5 would both count as kept
            raise ValueError(f"intervene: shortcut is True or False, got {self.shortcut!r}")
        if self.projections not in ("keep", "cut"):
            raise ValueError(f'intervene: projections is "keep" or "cut", got {self.projections!r}')

    @property
    def sum(self) -> str:
        """The sum at a site that is no projection."""
        branch = "F" if self.branch_scale == 1.0 else f"{self.branch_scale:g} F"
        return f"y = s + {branch}" if self.shortcut else f"y = {branch}"

    def __str__(self) -> str:
        """What is wanted, before it is known whether there are projections."""
        kept = not self.shortcut and self.projections == "keep"
        return f"{self.sum}, any P(x) kept" if kept else self.sum

    def check_paths(self, modules: Iterable[str]) -> None:
        """Before any site is known: whether each name can be that of a site.

        Raises:
            ValueError: one names no module, nor a part of one.
        """
        paths = {path or "model" for path in modules}
        for name in self.names or ():
            if not any(name == path or name.startswith(f"{path}/") for path in paths):
                raise ValueError(
                    f"intervene: no site or module is named {name!r} (find_residuals lists the "
                    f"sites){near(name, paths)}"
                )

    def check_names(self, known: SiteMap) -> None:
        """Whether every name is that of a site, or of a module with some.

        Raises:
            ValueError: one is not.
        """
        for name in self.names or ():
            if not _sites_at(known, name):
                _refuse(name, known, "intervene")

    def keeps_shortcut(self, site: Site) -> bool:
        """Whether a site's shortcut is added."""
        return self.shortcut or (site.kind == "projection" and self.projections == "keep")

    def why_not(self, site: Site, known: SiteMap) -> str:
        """Why a site is left as it is; "" where it is acted on."""
        if self.names is None:
            if site.nested:
                return _NESTED
        elif not any(site in _sites_at(known, name) for name in self.names):
            return _NOT_NAMED
        if self.branch_scale != 1.0:
            return ""
        if self.shortcut:
            return _AS_IT_IS
        return _KEPT if self.keeps_shortcut(site) else ""


def _refuse(name: str, known: SiteMap, caller: str) -> NoReturn:
    names = {each for site in known.sites for each in (site.name, site.module or "model")}
    raise ValueError(
        f"{caller}: no site is named {name!r} (find_residuals lists them){near(name, names)}"
    )


def sites_of(known: SiteMap, names: Sequence[str] | None, caller: str) -> tuple[Site, ...]:
    """The sites of names or module paths, each once; None: all at block level.

    Raises:
        ValueError: a name is unknown, or there is no site at all.
    """
    if not known.sites:
        raise ValueError(f"{caller}: no residual addition was found")
    if names is None:
        return known.block_level
    found: dict[int, Site] = {}
    for name in names:
        at = _sites_at(known, name)
        if not at:
            _refuse(name, known, caller)
        found.update({site.index: site for site in at})
    return tuple(found.values())


def _sites_at(known: SiteMap, wanted: str) -> list[Site]:
    """The sites of a name or a module path; none where there are none."""
    named = [site for site in known.sites if site.name == wanted]
    inside = [s for s in known.sites if s.module == wanted or s.module.startswith(f"{wanted}.")]
    return named or [site for site in inside if not site.nested] or inside
