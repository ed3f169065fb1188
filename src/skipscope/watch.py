"""Which places a user wants to see: the `sites` and `exclude` options as a predicate."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence

from torch import nn

from skipscope.find.paths import canonical, class_name
from skipscope.names import near


class Watch:
    """Decides for module paths, each once.

    Args:
        model: names and classes come from it.
        sites: module paths (with `*` and `?`) or class names whose inside is watched; None: all.
        exclude: the same, for what is left out.

    Example:
        >>> net = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU()))
        >>> watch = Watch(net, sites=["1"], exclude=None)
        >>> watch("1.0"), watch("0"), watch.named
        (True, False, frozenset({'1'}))
    """

    def __init__(
        self, model: nn.Module, sites: Sequence[str] | None, exclude: Sequence[str] | None
    ) -> None:
        self._classes = {
            canonical(name): class_name(module) for name, module in model.named_modules()
        }
        self._sites = sites
        self._exclude = exclude or ()
        self._known: dict[str, bool] = {}
        #: modules that were named themselves: without a visible addition they are watched whole
        self.named = frozenset(
            path for path in self._classes if path and self._is_one_of(path, sites or ())
        )

    def __call__(self, module: str) -> bool:
        """Whether additions of this module are measured."""
        if module not in self._known:
            wanted = self._sites is None or self._lies_in(module, self._sites)
            self._known[module] = wanted and not self._lies_in(module, self._exclude)
        return self._known[module]

    def unknown(self) -> Iterator[str]:
        """One clause for each name of `sites` and `exclude` that fits no module.

        >>> list(Watch(nn.Sequential(nn.Linear(1, 1)), ["0", "Lineal"], None).unknown())
        ["sites names 'Lineal'; did you mean Linear?"]
        """
        known = {*self._classes, *self._classes.values()} - {""}
        for argument, patterns in (("sites", self._sites or ()), ("exclude", self._exclude)):
            for pattern in patterns:
                if not any(self._is_one_of(path, (pattern,)) for path in self._classes):
                    yield f"{argument} names {pattern!r}{near(pattern, known)}"

    def _lies_in(self, module: str, patterns: Sequence[str]) -> bool:
        parts = module.split(".")
        paths = [".".join(parts[: length + 1]) for length in range(len(parts))]
        return any(self._is_one_of(path, patterns) for path in paths)

    def _is_one_of(self, path: str, patterns: Sequence[str]) -> bool:
        return any(
            fnmatch.fnmatchcase(path, pattern) or self._classes.get(path) == pattern
            for pattern in patterns
        )
