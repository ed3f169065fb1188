"""Which places a user wants to see: the `sites` and `exclude` options as a predicate."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from torch import nn

from skipscope.find.paths import canonical, class_name


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

    def _lies_in(self, module: str, patterns: Sequence[str]) -> bool:
        parts = module.split(".")
        paths = [".".join(parts[: length + 1]) for length in range(len(parts))]
        return any(self._is_one_of(path, patterns) for path in paths)

    def _is_one_of(self, path: str, patterns: Sequence[str]) -> bool:
        return any(
            fnmatch.fnmatchcase(path, pattern) or self._classes.get(path) == pattern
            for pattern in patterns
        )
