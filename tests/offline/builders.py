"""Histories by hand: state r, cosine, gradients, updates, losses; the sums behind them follow.

    history = make_history([[0.5, 0.4, 0.3]] * 4, cosine=0.1)      # 4 captures, 3 sites
    add_updates(history, ratio=1e-3)                               # one matrix a site
    add_facts(history, loss=[2.3, 2.2, 2.1], lr=1e-3)              # 3 steps

Arrays broadcast to (captures, sites), (rows, parameters) or (steps,).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from skipscope.history import History
from skipscope.records import (
    FACTS,
    PARAMETER_SUMS,
    SUMS,
    Group,
    Parameter,
    Run,
    Site,
    SiteMap,
    Stream,
)

Floats = npt.NDArray[np.float64]

#: All bits of a site's, and of a parameter's `have` mask.
ALL, ALL_OF_PARAMETER = 31, 7


def make_site(index: int, **changes: Any) -> Site:
    """A pre-norm identity site `blocks.<index>` on stream 0."""
    facts: dict[str, Any] = {
        "index": index,
        "depth": index,
        "name": f"blocks.{index}",
        "module": f"blocks.{index}",
        "source": "net.py:10",
        "occurrence": 0,
        "kind": "identity",
        "broadcast": False,
        "alpha": 1.0,
        "shortcut_source": "same",
        "shortcut_path": (),
        "stream": 0,
        "stage": 0,
        "link": (),
        "norm_placement": "pre-norm",
        "nested": False,
        "parallel": False,
        "other_readers": False,
        "shape": (4, 8, 16),
        "rows": "token",
        "shortcut_dtype": "float32",
        "branch_dtype": "float32",
        "parameters": (f"blocks.{index}.weight",),
    }
    return Site(**{**facts, **changes})


def make_map(*sites: Site, embedding_fed: bool = False, **changes: Any) -> SiteMap:
    """A site map of these sites, its streams read off them; `changes` are for the map."""
    numbers = sorted({site.stream for site in sites})
    members = {n: [s for s in sites if s.stream == n and not s.nested] for n in numbers}
    streams = tuple(
        Stream(
            n,
            tuple(site.index for site in sorted(held, key=lambda site: site.depth)),
            embedding_fed,
            pure=not any(site.link for site in held),
        )
        for n, held in members.items()
    )
    return SiteMap(**{"sites": sites, "streams": streams, **changes})


def make_sums(
    r: npt.ArrayLike,
    *,
    cosine: npt.ArrayLike = 0.0,
    shortcut_rms: npt.ArrayLike | None = None,
    b: npt.ArrayLike | None = None,
    gradient_cosine: npt.ArrayLike = 0.0,
    last_gradient: npt.ArrayLike = 1.0,
    n: float = 512.0,
    **fields: npt.ArrayLike,
) -> Floats:
    """Sums of one pure stream of identity sites: every x is the sum before it.

    Args:
        r: branch ratio, (captures, sites).
        cosine: of shortcut and branch.
        shortcut_rms: RMS of each shortcut; None: 1 at the first site, then the sum before.
        b: branch part over identity part of the gradient; None: r.
        gradient_cosine: of the two parts.
        last_gradient: `|g_y|` at the last site, (captures,) or one number; the others follow.
        n: elements.
        fields: any of SUMS, in place of what follows from the rest.
    """
    ratio = np.atleast_2d(np.asarray(r, float))
    c = np.broadcast_to(np.asarray(cosine, float), ratio.shape)
    part = ratio if b is None else np.broadcast_to(np.asarray(b, float), ratio.shape)
    gc = np.broadcast_to(np.asarray(gradient_cosine, float), ratio.shape)
    growth = np.sqrt(1 + 2 * ratio * c + ratio**2)
    gain = np.sqrt(1 + 2 * part * gc + part**2)
    if shortcut_rms is None:
        ones = np.ones((len(ratio), 1))
        shortcut_rms = np.cumprod(np.hstack([ones, growth[:, :-1]]), axis=1)
    ss = n * np.broadcast_to(np.asarray(shortcut_rms, float), ratio.shape) ** 2
    later = np.cumprod(gain[:, :0:-1], axis=1)[:, ::-1]  # product of the gains of later sites
    gy = np.hstack([later, np.ones((len(ratio), 1))]) ** 2
    gy = gy * np.reshape(np.asarray(last_gradient, float), (-1, 1)) ** 2
    known: dict[str, npt.ArrayLike] = {
        "n": n,
        "ss": ss,
        "ff": ratio**2 * ss,
        "sf": c * ratio * ss,
        "yy": growth**2 * ss,
        "max_s": 3 * np.sqrt(ss / n),
        "max_f": 3 * np.sqrt(ss / n) * ratio,
        "max_y": 3 * np.sqrt(ss / n) * growth,
        "min_f": -3 * np.sqrt(ss / n) * ratio,
        "n_x": n,
        "xx": ss,
        "max_x": 3 * np.sqrt(ss / n),
        "rows": 32,
        "samples": 4,
        "zero_f": np.where(ratio == 0, 4, 0),
        "influence": 32 * (1 - (1 + ratio * c) / growth),
        "row_cosine": 0.1 * 4 * 8 * 7,  # 4 samples of 8 tokens
        "row_pairs": 4 * 8 * 7,
        "channel": 0.1 * growth**2 * ss / n,
        "r_median": ratio,
        "gy": gy,
        "gx": gain**2 * gy,
        "gi": gy,
        "gb": part**2 * gy,
        "gib": gc * part * gy,
        "gxy": (1 + gc * part) * gy,
        **fields,
    }
    sums = np.zeros((*ratio.shape, len(SUMS)))
    for at, field in enumerate(SUMS):
        sums[:, :, at] = known.get(field.name, 0.0)
    return sums


def make_history(
    r: npt.ArrayLike,
    *,
    sites: SiteMap | None = None,
    steps: npt.ArrayLike | None = None,
    have: npt.ArrayLike = ALL,
    why: npt.ArrayLike = 0,
    run: Run | None = None,
    **numbers: Any,
) -> History:
    """A history with one capture for each row of r; `numbers` are those of `make_sums`."""
    sums = make_sums(r, **numbers)
    shape = sums.shape[:2]
    history = History(run or Run(run_id="by-hand"))
    history.set_sites(sites or make_map(*(make_site(k) for k in range(shape[1]))))
    at = np.arange(shape[0]) if steps is None else np.asarray(steps)
    masks = np.broadcast_to(np.asarray(have, np.uint8), shape)
    reasons = np.broadcast_to(np.asarray(why, np.uint8), shape)
    for step, row, mask, reason in zip(at, sums, masks, reasons, strict=True):
        history.append_capture(int(step), row, mask, reason)
    return history


def make_parameter(index: int, **changes: Any) -> Parameter:
    """The trainable 16x16 matrix of block `index`, in optimizer group 0."""
    facts: dict[str, Any] = {
        "index": index,
        "name": f"blocks.{index}.weight",
        "shape": (16, 16),
        "dtype": "float32",
        "trainable": True,
        "group": 0,
        "role": "weight",
        "block": f"blocks.{index}",
        "sites": (index,),
        "owner": "Linear",
    }
    return Parameter(**{**facts, **changes})


def make_group(index: int = 0, **options: float | bool | str | None) -> Group:
    """A parameter group of AdamW."""
    return Group(index, "AdamW", {"lr": 1e-3, "weight_decay": 0.01, **options})


def add_updates(
    history: History,
    *,
    ratio: npt.ArrayLike = 1e-3,
    weight: npt.ArrayLike = 4.0,
    gradient: npt.ArrayLike = 0.1,
    changed: npt.ArrayLike = 1.0,
    have: npt.ArrayLike = ALL_OF_PARAMETER,
    parameters: tuple[Parameter, ...] | None = None,
    groups: tuple[Group, ...] | None = None,
    steps: npt.ArrayLike | None = None,
) -> History:
    """Append parameter sums; without `parameters`, one matrix for each site.

    Args:
        history: where to.
        ratio: `|dW| / |W|`.
        weight: `|W|`; 4 is four times the floor of a 16x16 matrix's update ratio divided by .4.
        gradient: norm of the gradient.
        changed: share of the elements that changed.
        have: HAVE_WEIGHT ... bits.
        parameters: the table.
        groups: the optimizer groups; None: one of AdamW.
        steps: None: the capture steps.
    """
    table = parameters or tuple(make_parameter(k) for k in range(len(history.sites.sites)))
    history.set_parameters(table, groups or (make_group(),))
    at = history.capture_steps if steps is None else np.atleast_1d(np.asarray(steps))
    shape = (len(at), len(table))
    size = np.array([np.prod(parameter.shape) for parameter in table], float)
    ww = np.broadcast_to(np.asarray(weight, float) ** 2, shape)
    known = {
        "n": size,
        "ww": ww,
        "gg": np.asarray(gradient, float) ** 2,
        "dd": np.asarray(ratio, float) ** 2 * ww,
        "changed": np.asarray(changed, float) * size,
    }
    sums = np.stack([np.broadcast_to(known[f.name], shape) for f in PARAMETER_SUMS], axis=-1)
    masks = np.broadcast_to(np.asarray(have, np.uint8), shape)
    for step, row, mask in zip(at, sums, masks, strict=True):
        history.append_updates(int(step), row, mask)
    return history


def add_facts(
    history: History,
    *,
    loss: npt.ArrayLike = 1.0,
    lr: npt.ArrayLike = 1e-3,
    steps: npt.ArrayLike | None = None,
    **facts: npt.ArrayLike,
) -> History:
    """Append step facts; `facts` are any of FACTS. Every step counts as captured unless given.

    Args:
        history: where to.
        loss: (steps,).
        lr: (steps,) for one group, (steps, groups) for several.
        steps: None: 0, 1, 2 ... for as long as `loss`, `lr` or a fact is.
        facts: epoch, loss_scale, skipped, captured, seconds, host_ms, global_step.
    """
    rates = np.asarray(lr, float)
    longest = max(len(np.atleast_1d(np.asarray(v))) for v in (loss, lr, *facts.values()))
    at = np.arange(longest) if steps is None else np.atleast_1d(np.asarray(steps))
    known = {
        "step": at,
        "epoch": 0,
        "global_step": at,
        "loss": loss,
        "loss_scale": 1,
        "skipped": 0,
        "captured": 1,
        "seconds": 0.1,
        "host_ms": 1.0,
        **facts,
    }
    columns = [np.broadcast_to(np.asarray(known[f.name], float), at.shape) for f in FACTS]
    groups = rates.shape[1] if rates.ndim == 2 else 1
    rates = rates if rates.ndim == 2 else np.broadcast_to(rates, at.shape)[:, None]
    if len(history.groups) < groups:
        history.set_parameters(history.parameters, tuple(make_group(k) for k in range(groups)))
    history.append_facts(np.hstack([np.stack(columns, axis=1), rates]))
    return history
