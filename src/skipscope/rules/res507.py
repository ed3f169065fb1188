"""RES507: what is added is no longer the block's input."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from skipscope.history import Table
from skipscope.records import Site, SiteMap
from skipscope.rule import Hit, NotMeasurable, listed, rule, short
from skipscope.rule.shortcuts import column

#: Words of a shortcut's path that may stand there together, and those of which one must.
_ALLOWED = frozenset({"norm", "activation", "scale"})
_ALTERS = frozenset({"norm", "activation"})


@rule(code="RES507", name="altered-shortcut", severity="warning", explains=("RES504",))
def altered_shortcut(
    sites: SiteMap,
    captures: npt.NDArray[np.int64],
    adapter_ratio: Table | None = None,
) -> Iterator[Hit]:
    """The shortcut is a rewritten, normalised or activated version of the block's input.

    What it sees:
        * *rewritten*: the tensor that the block received was changed in place before it was added
          (its version grew inside the block).
        * *on the way*: between x and the addition stands a norm or an activation, and no projection
          or resampling that would ask for one, while the branch reads x itself.

        One finding for each line of code and kind.

    Example:
        One addition: its input rewritten by an in-place ReLU that was meant for the
        branch, its shortcut normalised on the way, and an intact one.

            sick     x ── relu_ ──┬────────(+)── y    y = relu(x) + F(relu(x))
                                  └── F ────┘
            sick     x ──┬── norm ─────────(+)── y    y = norm(x) + F(x)
                         └── F ─────────────┘
            healthy  x ──┬─────────────────(+)── y    y = x + F(relu(x))
                         └── relu ── F ─────┘

    Why it matters:
        An in-place ReLU as first layer of a branch turns `x + F(x)` into `relu(x) + F(relu(x))`
        without an error: the negative half of the signal is gone, and the gradient through the
        shortcut is masked by x > 0. The size of the shortcut shows it in the first block only (.78
        of x in the case below, .98 to 1.0 later, when few negatives are left), so no rule about
        norms fires.
    What to try:
        * make the first operation of the branch out of place (`inplace=False`)
        * keep a norm or an activation inside the branch, not on the shortcut
        * if the block is meant to activate its input first, do it out of place and add that
    When it is wrong:
        A block that activates its input on purpose, in place, and adds the result does the same to
        the tensor. A norm on the stream that branch and shortcut both read is post-norm, and a norm
        or activation in front of a projection is pre-activation: neither is reported here. A norm
        on the shortcut alone can be an architecture; then allow it with `ignore`.
    Thresholds:
        None: the shortcut is x or it is not.
    Source:
        rosinality/vq-vae-2-pytorch issue 60, iduta/iresnet PR 2, pytorch/pytorch issue 44194. He
        2016 (arXiv 1603.05027), section 3: what is put on the shortcut hampers propagation.
    """
    if not len(captures) or not sites.sites:
        raise NotMeasurable("needs a residual addition")
    groups: dict[tuple[str, str], list[Site]] = {}
    for site in sites.sites:
        how = _how(site)
        if how:
            groups.setdefault((how, site.source), []).append(site)
    for (how, source), found in groups.items():
        sizes = _sizes(adapter_ratio, found)
        evidence: dict[str, float | str] = {"sites": float(len(found)), "how": how}
        if sizes is not None:
            evidence["RMS shortcut / input, lowest"], evidence["highest"] = sizes
        rewritten = how == "rewritten in place"
        yield Hit(
            where=tuple(dict.fromkeys(site.name for site in found)),
            value=float(len(found)),
            expectation="the block's input itself: an identity shortcut adds x",
            message=f"the shortcut is {how} before it is added at "
            f"{listed(site.name for site in found)} ({source})"
            + (f"; its RMS is {short(sizes[0])} to {short(sizes[1])} of x" if sizes else ""),
            first_step=int(captures[0]),
            last_step=int(captures[-1]),
            evidence=evidence,
            cause="an in-place operation on x between the block's entry and the addition"
            if rewritten
            else f"{how} on the shortcut, although no shape changes",
        )


def _how(site: Site) -> str:
    """What was done to the shortcut, "" where it is x or a projection."""
    if site.shortcut_source == "rewritten":
        return "rewritten in place"
    path = set(site.shortcut_path)
    if path <= _ALLOWED and path & _ALTERS:
        return "normalised" if "norm" in path else "activated"
    return ""


def _sizes(adapter: Table | None, found: list[Site]) -> tuple[float, float] | None:
    """Lowest and highest RMS(shortcut) / RMS(input) of these sites in their first capture."""
    if any(site.shortcut_source == "rewritten" for site in found):
        return None  # x as it came in is gone; what was measured is the rewritten one
    values = [column(adapter, site.name) for site in found]
    first = [v[np.isfinite(v)][0] for v in values if v is not None and np.isfinite(v).any()]
    return (float(min(first)), float(max(first))) if first else None
