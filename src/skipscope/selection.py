"""Which sites are meant: by names, module paths, patterns and classes, as they were asked for.

One question for all that take `sites=`: does a name of the user's fit? The monitor asks it of
modules, since it decides before a site is known; interventions, ablation and remedies ask it of a
site map.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NoReturn

from skipscope.names import near
from skipscope.records import Site, SiteMap

Classes = Mapping[str, str]  #: of modules, by path

ROOT = "model"  #: what stands for the model itself, whose path is empty


def asked(caller: str, wanted: Any, *, indices: bool = False) -> tuple[Any, ...] | None:
    """What was given as `sites`: one name, several, or None for all; with `indices` these too.

    Raises:
        ValueError: what was given is none of these, or nothing.

    >>> asked("intervene", "blocks.3"), asked("ablate", 3, indices=True), asked("intervene", None)
    (('blocks.3',), (3,), None)
    """
    if wanted is None:
        return None
    one = isinstance(wanted, str) or not isinstance(wanted, Iterable)
    held = (wanted,) if one else tuple(wanted)
    kinds = "names, indices or module paths" if indices else "names of sites or module paths"
    if not held:
        raise ValueError(
            f"{caller}: sites must name something, got {wanted!r}: nothing would be done; give "
            f"{kinds}, or None for all"
        )
    for each in held:
        name = isinstance(each, str) and each.strip()
        if not name and not (indices and isinstance(each, int) and not isinstance(each, bool)):
            raise ValueError(
                f"{caller}: sites are {kinds}, or None for all, got {each!r}; give names such as "
                '"blocks.3" or "blocks.*"'
            )
    return held


def fits(wanted: str, path: str, classes: Classes) -> bool:
    """Whether a path, a pattern (`*`, `?`) or a class name is that of a module.

    >>> [fits(name, "blocks.0", {"blocks.0": "Block"}) for name in ("blocks.?", "Block", "blocks")]
    [True, True, False]
    """
    return fnmatchcase(path, wanted) or classes.get(path) == wanted


def lies_in(module: str, wanted: str, classes: Classes) -> bool:
    """Whether a module is, or lies inside, one of this path, pattern or class.

    >>> [lies_in("blocks.0.fc", name, {"": "Net"}) for name in ("blocks.0", "b*", "Net", "fc")]
    [True, True, True, False]
    """
    parts = module.split(".") if module else []
    paths = (".".join(parts[:length]) for length in range(len(parts) + 1))
    return any(fits(wanted, path, classes) for path in paths)


def unknown(wanted: str, classes: Classes) -> str | None:
    """None where a name fits a module; else what comes near it.

    >>> unknown("blocks.*", {"": "Net", "blocks.0": "Block"}) is None
    True
    >>> unknown("Blok", {"": "Net", "blocks.0": "Block"})
    '; did you mean Block or blocks.0?'
    """
    if any(fits(wanted, path, classes) for path in classes):
        return None
    return near(wanted, {*classes, *classes.values()} - {""})


def chosen(known: SiteMap, names: Sequence[Any] | None, caller: str) -> tuple[Site, ...]:
    """The sites that are meant, each once, in the order asked for; None: all at block level.

    Raises:
        ValueError: a name or index is no site's, or there is no site at all.
    """
    if not known.sites:
        raise ValueError(f"{caller}: no residual addition was found")
    if names is None:
        return known.block_level
    classes = _classes(known)
    found: dict[int, Site] = {}
    for name in names:
        at = _at(known, name, classes)
        if not at:
            _refuse(name, known, classes, caller)
        found.update({site.index: site for site in at})
    return tuple(found.values())


def among(known: SiteMap, names: Sequence[str]) -> frozenset[int]:
    """Indices of the sites that some of the names are those of."""
    classes = _classes(known)
    return frozenset(site.index for name in names for site in _at(known, name, classes))


def _at(known: SiteMap, wanted: str | int, classes: Classes) -> list[Site]:
    """The sites of a name, index, path, pattern or class; none where there are none.

    A site's own name is that one, nested or not; all else stands for the block-level sites that
    it fits, or, where it fits nested ones only, for these.
    """
    own = [site for site in known.sites if wanted in (site.name, site.index)]
    if own or isinstance(wanted, int):
        return own
    found = [
        site
        for site in known.sites
        if fnmatchcase(site.name, wanted)
        or lies_in(site.module, wanted, classes)
        or (wanted == ROOT and not site.module)
    ]
    return [site for site in found if not site.nested] or found


def _refuse(wanted: str | int, known: SiteMap, classes: Classes, caller: str) -> NoReturn:
    if isinstance(wanted, int):
        raise ValueError(f"{caller}: no site has index {wanted}; there are {len(known.sites)}")
    names = {name for site in known.sites for name in (site.name, site.module or ROOT)}
    kinds = {kind for path, kind in classes.items() if any(lies_in(n, path, {}) for n in names)}
    raise ValueError(
        f"{caller}: no site is named {wanted!r} (find_residuals lists them)"
        f"{near(wanted, names, also=kinds)}"
    )


def _classes(known: SiteMap) -> Classes:
    return {path: kind.name for kind in known.modules for path in kind.paths}
