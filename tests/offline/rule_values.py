"""Values for a rule, written down: tables and a site map, no files and no run."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Parameter, Site, SiteMap
from tests.offline.builders import make_group, make_map, make_site


def table(
    name: str,
    values: npt.ArrayLike,
    columns: tuple[str, ...] | None = None,
    steps: npt.ArrayLike | None = None,
    missing: npt.ArrayLike | None = None,
) -> Table:
    """A table; the columns are `blocks.0` ... and the steps 0, 1 ... unless given."""
    held = np.atleast_2d(np.asarray(values, float))
    gone = np.zeros(held.shape, bool) if missing is None else np.asarray(missing, bool)
    at = np.arange(len(held)) if steps is None else np.asarray(steps)
    names = columns or tuple(f"blocks.{k}" for k in range(held.shape[1]))
    return Table(name, "", name.replace("_", " "), at, names, np.where(gone, np.nan, held), gone)


def chain(count: int, embedding_fed: bool = False, **changes: Any) -> SiteMap:
    """A stream of `count` sites `blocks.<k>` of one stage."""
    return make_map(*(make_site(k, **changes) for k in range(count)), embedding_fed=embedding_fed)


def staged(*sizes: int, projections: bool = True) -> SiteMap:
    """A stream of several stages `stages.<i>.<j>`; each but the first begins with a projection."""
    sites: list[Site] = []
    for stage, size in enumerate(sizes):
        for k in range(size):
            kind = "projection" if projections and k == 0 and stage > 0 else "identity"
            name = f"stages.{stage}.{k}"
            sites.append(
                make_site(
                    len(sites), name=name, module=name, stage=stage, kind=kind,
                    norm_placement="post-activation", parameters=(f"{name}.conv.weight",),
                )
            )  # fmt: skip
    return make_map(*sites)


def names(sites: SiteMap) -> tuple[str, ...]:
    return tuple(site.name for site in sites.sites)


def law(sites: SiteMap, first: float = 1.0) -> npt.NDArray[np.float64]:
    """r of each site under 1/sqrt(k+1), restarting at each stage."""
    seen: dict[int, int] = {}
    values = []
    for site in sites.sites:
        k = seen.get(site.stage, 0)
        seen[site.stage] = k + 1
        values.append(first / np.sqrt(k + 1))
    return np.array(values)


def rates(steps: int, lr: float | npt.ArrayLike = 1e-3, groups: int = 1) -> Table:
    """Learning rates of `steps` steps."""
    values = np.broadcast_to(np.asarray(lr, float), (steps, groups))
    return table("lr", values, tuple(f"lr.{g}" for g in range(groups)))


def with_updates(
    parameters: tuple[Parameter, ...],
    gradient: npt.ArrayLike,
    update: npt.ArrayLike,
    weight: npt.ArrayLike = 1.0,
    steps: npt.ArrayLike | None = None,
) -> dict[str, Any]:
    """Parameters, one optimizer group, and the tables of gradient, update and weight norms."""
    at = np.arange(20) if steps is None else np.asarray(steps)
    columns = tuple(p.name for p in parameters)
    shape = (len(at), len(parameters))
    filled = {
        "gradient_norm": gradient,
        "update_norm": update,
        "weight_norm": weight,
    }
    made = {
        name: table(name, np.broadcast_to(np.asarray(v, float), shape), columns, at)
        for name, v in filled.items()
    }
    return {"parameters": parameters, "groups": (make_group(0),), **made}
