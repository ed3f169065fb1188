"""An intervention while it is open: what it acts on, what it leaves, and the sums it gives."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from skipscope.acting import ACTING, sharing
from skipscope.additions import Addition, Passing, visitors_below
from skipscope.compiled import is_compiled
from skipscope.eager import EagerStance
from skipscope.example import check_model
from skipscope.find import SiteRegistry
from skipscope.find.paths import classes_of
from skipscope.find.places import source_line
from skipscope.intervention.arm import Arm, Projections
from skipscope.intervention.following import Following, check_eager
from skipscope.intervention.learned import Learned
from skipscope.intervention.rehearsal import (
    Call,
    Part,
    Place,
    in_checkpoint,
    rehearse,
)
from skipscope.intervention.replaced import replaced
from skipscope.names import counted
from skipscope.records import Key, Site, SiteMap, Unseen
from skipscope.reduce import in_transform

logger = logging.getLogger("skipscope")


@dataclass(frozen=True)
class Left:
    """A site that an intervention leaves as it is."""

    site: Site
    reason: str


class Intervention(Passing):
    """What `intervene` yields: the sites it acts on and those it leaves."""

    def __init__(
        self,
        model: nn.Module,
        sites: str | Sequence[str] | None = None,
        *,
        branch_scale: float = 1.0,
        shortcut: bool = True,
        projections: Projections = "keep",
    ) -> None:
        self.arm = Arm.wanted(sites, branch_scale, shortcut, projections)
        check_model("intervene", model)
        check_eager(model)
        if isinstance(model, DistributedDataParallel):  # each forward of its own awaits a backward
            model = model.module
        self._model = model
        self._calls = Following(model, self, self._begin)
        self.arm.check_paths(classes_of(model))
        self._registry = SiteRegistry()
        self._map = SiteMap((), ())
        self._learned = Learned()
        self._acts: dict[Key, bool] = {}  #: the sites acted on, and whether the shortcut is kept
        self._rehearsed: set[tuple[str, bool]] = set()
        # How often each place was passed in this call, by data and by what is too small for it.
        self._passed: Counter[Place] = Counter()
        self._small: Counter[Place] = Counter()
        self._attached = ExitStack()

    # ------------------------------------------------------------------ what it says
    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites it acts on, in order of discovery."""
        return tuple(site for site in self._map.sites if site.key in self._acts)

    @property
    def left(self) -> tuple[Left, ...]:
        """The sites it leaves as they are, with the reason."""
        others = [site for site in self._map.sites if site.key not in self._acts]
        named = self.arm.named(self._map)
        return tuple(Left(site, self.arm.why_not(site, named)) for site in others)

    @property
    def unseen(self) -> tuple[Unseen, ...]:
        """What is, or may be, an addition of another form, and stays what it is."""
        return self._map.unseen

    def __repr__(self) -> str:
        where = self._where() if self._rehearsed else "before any forward"
        return f"<Intervention {self.arm} {where}>"

    def _where(self) -> str:
        return f"at {len(self.sites)} of {counted(len(self._map.sites), 'site')}"

    def __str__(self) -> str:
        if not self._rehearsed:
            return "intervention: no forward has run yet"
        lines = [f"{self.arm.sum} {self._where()}"]
        for site in self.sites:
            kept = ", P(x) kept" if self._acts[site.key] and not self.arm.shortcut else ""
            lines.append(f"  {site.name} ({site.kind}{kept})")
        lines += [f"left {left.site.name}: {left.reason}" for left in self.left]
        lines += [
            f"left {one.where or 'model'} ({one.source}): {one.reason}" for one in self.unseen
        ]
        return "\n".join(lines)

    # ------------------------------------------------------------------ attaching
    def __enter__(self) -> Intervention:
        if any(sharing(self._model)):
            raise ValueError(
                "intervene: another intervention is open on this model or on a part of it; close "
                "it, or name all sites in one"
            )
        if is_compiled(self._model):
            logger.warning("skipscope: the model runs eagerly while an intervention is open.")
        with ExitStack() as stack:
            ACTING[self._model] = self.arm.told
            stack.callback(ACTING.pop, self._model, None)
            stack.enter_context(EagerStance())
            stack.enter_context(self._calls)
            self._attached = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._attached.close()

    def check_end(self) -> None:
        """Whether it acted, and every name was a site's in some forward.

        Raises:
            ValueError: a name was not, or it acted nowhere.
        """
        if self._rehearsed:
            self.arm.check_names(self._map)
        self._check_acting()

    # ------------------------------------------------------------------ finding
    def _begin(self, call: Call | None, name: str) -> None:
        """A call from outside: line counts start anew; the first one in a mode is rehearsed."""
        self._passed.clear()
        self._small.clear()
        if call is not None and (name, call.module.training) not in self._rehearsed:
            self._rehearse(call, name)

    def _rehearse(self, call: Call, name: str) -> None:
        with self._calls.rehearsing():
            rehearsal = rehearse(self._model, call, lambda: self._calls.current)
        try:
            self._map = self._registry.site_map(
                rehearsal.found.values(), rehearsal.observations.unseen, rehearsal.places.called
            )
            self._learned.learn(rehearsal)
        finally:
            rehearsal.close()
        self._rehearsed.add((name, call.module.training))
        self._choose(whole=name == "")

    def _choose(self, *, whole: bool) -> None:
        """Decides what to do at each site known by now."""
        blind = [one for one in self._map.unseen if one.what in ("no graph", "transform")]
        if blind and self.arm.names is None:
            raise ValueError(
                f"intervene: additions of {blind[0].where or 'model'} ({blind[0].source}) look "
                f"residual, and cannot be told: {blind[0].reason}. Checkpoints need "
                "use_reentrant=False; sites= names those to act on without these"
            )
        acted, named = set(self._acts), self.arm.named(self._map)
        self._acts = {
            site.key: self.arm.keeps_shortcut(site)
            for site in self._map.sites
            if not self.arm.why_not(site, named)
        }
        moved = [s.name for s in self._map.sites if s.key in acted - self._acts.keys()]
        if moved:
            raise ValueError(
                f"intervene: {moved[0]} was a block of its own in earlier forwards and lies inside "
                "another site's branch now; name the sites to act on"
            )
        self._learned.check_sites(self.sites)
        if whole:
            self.arm.check_names(self._map)
            self._check_acting()

    def _check_acting(self) -> None:
        """A control that changes nothing would train the model as it is, and be taken for one."""
        if self._acts or not self.arm.changes:
            return
        why = "no residual addition was found (find_residuals tells what was seen)"
        if not self._rehearsed:
            why = "no module of the model ran that may form a sum; one of a training loop stays"
        if self._map.sites:
            reasons = sorted({left.reason for left in self.left})
            why = f"it leaves all {counted(len(self._map.sites), 'site')}: {'; '.join(reasons)}"
        raise ValueError(f"intervene: {self.arm.sum} nowhere: {why}")

    # ------------------------------------------------------------------ acting
    def addition(self, addition: Addition, run: Callable[[], Tensor]) -> Tensor:
        """Another sum where it is a part of a site that is acted on."""
        part = self._part()
        if part is None or part.key not in self._acts:
            return run()
        keeps = part.further or self._acts[part.key]
        value = replaced(addition, run, part.branch_left, self.arm.branch_scale, keeps=keeps)
        if not keeps:  # nothing was added, and others count what they have seen in a rehearsal
            for visitor in visitors_below():
                value = visitor.addition(addition, functools.partial(_given, value))
        if part.key in self._learned.checkpointed and value.grad_fn is not None and in_checkpoint():
            value.grad_fn.register_prehook(self._must_be_open)
        return value

    def small(self) -> None:
        """No sum of a site may come without its batch."""
        place = self._calls.current, source_line()
        self._small[place] += 1
        call, passed = self._calls.call, self._small[place]
        if not self._learned.is_small(place, passed, self._acts):
            return
        if call is not None and not in_transform():  # a loop may have grown longer
            self._rehearse(call, self._calls.names[id(call.module)])
        if self._learned.is_small(place, passed, self._acts):
            raise ValueError(
                f"intervene: {place[1]} in {place[0] or 'model'} adds tensors with less than two "
                "dimensions, which are followed nowhere: give the model a batch, not one sample"
            )

    def _must_be_open(self, *_: object) -> None:
        """What a checkpoint recomputes once this is closed is the model's own sum."""
        if self._model not in ACTING:
            raise ValueError(
                "intervene: backward() ran after the context was closed, and what a checkpoint "
                "recomputes there is the model's own sum: call backward() inside of the context"
            )

    def _part(self) -> Part | None:
        place = self._calls.current, source_line()
        count = self._passed[place]
        self._passed[place] += 1
        if count >= len(self._learned.at(place)):
            self._rehearse_again(place, count)
        part = self._learned.at(place)[count]
        if self._calls.call is None and part is not None:
            self._check_recomputed(part)
        return part

    def _rehearse_again(self, place: Place, count: int) -> None:
        call = self._calls.call
        if call is not None:
            self._rehearse(call, self._calls.names[id(call.module)])
        if count >= len(self._learned.at(place)):
            raise ValueError(
                f"intervene: {place[1]} in {place[0] or 'model'} did not run when the same forward "
                "was rehearsed: its path depends on more than inputs and random state, so it "
                "cannot be followed"
            )

    def _check_recomputed(self, part: Part) -> None:
        """A checkpointed module that is called alone does not tell which of its calls it is."""
        places = {site.name: site.key for site in self._map.sites}
        same = [key for key in places.values() if key[:2] == part.key[:2]]
        if any((key in self._acts) != (part.key in self._acts) for key in same):
            raise ValueError(
                f"intervene: {part.key[1]} is checkpointed, is added more than once and only in "
                "part acted on; a recomputation does not tell which of the calls it is: name all "
                "of them, or switch checkpointing off"
            )


def _given(value: Tensor) -> Tensor:
    return value
