"""One residual addition of the present forward, and what is kept of one for a moment."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from skipscope.find.node import Edge, version_of
from skipscope.find.relate import Relation
from skipscope.find.vocabulary import Op
from skipscope.records import Key, Kind
from skipscope.reduce import wide


@dataclass(slots=True)
class Found:
    """One residual addition of the present forward, with the structure around it."""

    relation: Relation
    module: str
    source: str
    occurrence: int  #: k-th time at this module and line in one forward
    alpha: float
    shortcut_factor: float
    broadcast: bool
    rewritten: bool
    shape: tuple[int, ...]
    dtypes: tuple[str, str]
    parameters: tuple[str, ...]
    previous: Found | None  #: whose sum x leads back to
    link: tuple[Op, ...]  #: what stands between that sum and x
    embedding_fed: bool
    inside: list[Found]  #: residual additions within the branch
    parallel: bool = False
    other_readers: bool = False
    watched: Literal["addition", "module"] = "addition"
    sum_edge: Edge | None = None

    @property
    def kind(self) -> Kind:
        """The shortcut's kind; a coefficient of the addition itself scales it too."""
        kind = self.relation.kind
        return "scaled" if kind == "identity" and self.shortcut_factor != 1.0 else kind

    @property
    def key(self) -> Key:
        """As `Site.key`."""
        return self.module, self.source, self.occurrence

    @property
    def rows(self) -> Literal["token", "sample"]:
        """Tokens where the branch's last weight acts on the axis that is last in the sum."""
        last = self.relation.last_matrix
        if last is None or last.op is Op.CONVOLUTION or len(self.shape) < 3:
            return "sample"
        nodes = self.relation.branch.nodes
        turns = sum(node.op is Op.TURN for number, node in nodes.items() if number > last.number)
        return "sample" if turns % 2 else "token"


@dataclass(frozen=True, slots=True)
class Recent:
    """A site just passed, and its operands while they live: a further branch may read its x."""

    found: Found
    _s: weakref.ref[Tensor]
    _s_version: int
    _f: weakref.ref[Tensor]
    _f_version: int

    @property
    def shortcut(self) -> Tensor | None:
        """The shortcut operand, if it is alive and unchanged."""
        s = self._s()
        return s if s is not None and version_of(s) == self._s_version else None

    def branch_with(self, total: Tensor, further: Tensor, factor: float) -> Tensor:
        """This site's branch and a further one together; `total` is this site's sum.

        Formed wider than half precision, whose rounding would be larger than a small branch.
        """
        dtype = torch.float32 if total.element_size() <= 2 else wide(total.device)
        f, s = self._f(), self.shortcut
        with torch.no_grad():
            if f is not None and version_of(f) == self._f_version:
                first = f.to(dtype) * self.found.alpha
            elif s is not None:
                first = total.to(dtype) - s.to(dtype) * self.found.shortcut_factor
            else:
                raise RuntimeError("a parallel branch needs one of its site's operands")
            return first + further.to(dtype) * factor
