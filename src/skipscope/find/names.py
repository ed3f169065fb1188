"""Readable, unique names of sites: the module path, then the branch's first part, then a number."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

from skipscope.records import Site


def with_names(sites: list[Site]) -> list[Site]:
    """The same sites, named."""
    by_module: dict[str, list[Site]] = defaultdict(list)
    for site in sites:
        by_module[site.module].append(site)
    named: dict[int, str] = {}
    for module, members in by_module.items():
        base = module or "model"
        labels = [_label(site) for site in members]
        repeated = Counter(labels)
        seen: Counter[str] = Counter()
        for site, label in zip(members, labels, strict=True):
            seen[label] += 1
            name = base if len(members) == 1 else f"{base}/{label}" if label else base
            if repeated[label] > 1:
                name = f"{name}/{seen[label]}"
            named[site.index] = name
    return [replace(site, name=named[site.index]) for site in sites]


def _label(site: Site) -> str:
    """The first child of the site's module that the branch's parameters belong to."""
    prefix = f"{site.module}." if site.module else ""
    children = [
        name.removeprefix(prefix).split(".")[0]
        for name in site.parameters
        if name.startswith(prefix)
    ]
    norms = ("norm", "ln", "bn")
    telling = [child for child in children if not child.lower().startswith(norms)]
    return (telling or children or [""])[-1]
