"""Which places a user wants to see: the `sites` and `exclude` options as a predicate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from skipscope.find.paths import classes_of
from skipscope.selection import ROOT, Classes, fits, lies_in, unknown


class Watch:
    """Decides for module paths, each once.

    Args:
        model: names and classes come from it.
        sites: module paths (with `*` and `?`) or class names whose inside is watched; None: all. Of
            a site's name ("blocks.1/mlp") its module counts, with all inside it: which sum is meant
            shows only once sites are known. "model": sums of the model's own forward.
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
        self._classes = classes_of(model)
        self._sites = sites
        self._exclude = exclude or ()
        self._known: dict[str, bool] = {}
        #: modules that were named themselves: without a visible addition they are watched whole
        self.named = frozenset(
            path
            for path in self._classes
            if path and any(_is_named(_module(n), path, self._classes) for n in sites or ())
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
        for argument, names in (("sites", self._sites or ()), ("exclude", self._exclude)):
            for name in names:
                near_it = unknown(_module(name), self._classes)
                if near_it is not None and _module(name) != ROOT:
                    yield f"{argument} names {name!r}{near_it}"

    def _lies_in(self, module: str, names: Sequence[str]) -> bool:
        wanted = [_module(name) for name in names]
        at_root = not module and ROOT in wanted
        return at_root or any(lies_in(module, one, self._classes) for one in wanted)


def _module(name: str) -> str:
    """Of a site's name the part that is a path."""
    return name.partition("/")[0]


def _is_named(wanted: str, path: str, classes: Classes) -> bool:
    """Whether a module is what is wanted, and no mere part of what fits a pattern already."""
    holder = path.rpartition(".")[0]
    return fits(wanted, path, classes) and not lies_in(holder, wanted, {})
