"""The sentences that the reports share: a view in, plain text out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from skipscope.names import counted
from skipscope.records import Finding, Run
from skipscope.reports._expected import usual_placement
from skipscope.reports._text import (
    Number,
    factor,
    listed,
    number,
    percent,
    scientific,
    signed,
)
from skipscope.reports._view import CostView, Root, SiteRow, StreamView, View

SEVERITIES = {"error": "error", "warning": "warning", "info": "note"}

#: How each number of the profile is written.
WRITTEN = {
    "branch_ratio": number,
    "branch_ratio_median": number,
    "cosine": signed,
    "growth": number,
    "gradient_gain": number,
    "update_ratio": scientific,
}
#: Short names of the columns of the profile.
COLUMNS = {
    "branch_ratio": "r",
    "cosine": "cos",
    "growth": "growth",
    "gradient_gain": "gradient gain",
    "update_ratio": "dW/W",
}


#: Depth numbers in the order that a reader asks: (words, how it is written).
DEPTH: dict[str, tuple[str, Callable[[Number], str]]] = {
    "total_growth": ("total growth", factor),
    "half_depth_growth": ("  H, of the second half", number),
    "half_depth_growth_without_largest": ("  H', without the largest", number),
    "residual_budget": ("  B, residual budget", number),
    "depth_multiplier": ("depth multiplier of gradients", factor),
    "depth_factor": ("  a site: d of d^{n}", number),
    "site_multiplier": ("  of it sites", factor),
    "link_multiplier": ("  of it links between sites", factor),
    "gradient_ratio": ("  G, first/last site", number),
}
Line = tuple[str, str, str]  #: what, its number, what was expected


def headline(view: View) -> str:
    """The first line of every report: the same form each time, made to be searched for."""
    fields = ("skipscope", f"epoch {view.epoch}", f"step {view.step}")
    return "  ".join((*fields, counted(len(view.sites), "site"), verdict(view)))


def verdict(view: View) -> str:
    """What was found; "healthy" only where most rules looked, with how many did not."""
    found = [
        counted(view.count(severity), word)
        for severity, word in SEVERITIES.items()
        if view.count(severity)
    ]
    new = sum(root.finding.status == "new" for root in view.roots)
    if found:
        found[-1] += f" ({new} new)" if new else ""
    resolved = [f"{len(view.cleared)} resolved"] if view.cleared else []
    if not view.calm:
        return ", ".join([*found, *resolved])
    skipped = sum(len(codes) for _, codes in view.skipped)
    if not view.sites or not view.cost.captures:
        return ", ".join([*found, *resolved, "nothing measured"])
    looked = len(view.passed)
    if not found and not looked:
        found = ["no findings", "no rule looked"]
    beside = [f"{counted(skipped, 'rule')} skipped"] if skipped else []
    found = found or ["healthy" if looked > skipped else "no findings"]
    return ", ".join([*found, *resolved, *beside])


def context(view: View) -> str:
    """What was watched: model, streams, norms, optimizers, where it ran.

    Nothing where there is no site; but for an intervention, which may be why there is none.
    """
    rows, run = view.block_level, view.run
    if not view.sites and not run.intervention:
        return ""
    streams = f" on {counted(len(view.streams), 'stream')}" if view.streams else ""
    nested = len(view.sites) - len(rows)
    split = f" ({' + '.join(str(s.sites) for s in view.streams)})" if len(view.streams) > 1 else ""
    fields = [
        run.model,
        f"{counted(len(rows), 'site')}{streams}{split if len(view.streams) <= 6 else ''}"
        + (f", {nested} nested" if nested else ""),
        _placement(rows),
        listed(sorted({group.optimizer for group in view.groups}), 2),
        " ".join(part for part in (run.device, run.precision) if part),
        counted(view.updates.frozen, "frozen parameter") if view.updates.frozen else "",
        _ranks(run),
        "resumed or pretrained" if not run.fresh else "",
        f"intervention {run.intervention}" if run.intervention else "",
    ]
    return ", ".join(field for field in fields if field)


def _ranks(run: Run) -> str:
    """How many processes the numbers stand for, and which numbers are of one alone."""
    if run.ranks_measured > 1:
        others = f" of {run.ranks}" if run.ranks > run.ranks_measured else ""
        return f"{run.ranks_measured}{others} ranks (medians and channel means of rank 0)"
    return f"rank 0 of {run.ranks}" if run.ranks > 1 else ""


def _placement(rows: Sequence[SiteRow]) -> str:
    usual = usual_placement(row.norm_placement for row in rows)
    mixed = any(row.norm_placement != usual for row in rows)
    return f"mostly {usual}" if mixed else usual if usual != "none" else ""


def since(finding: Finding) -> str:
    """From which step on, or in which steps, and whether it is new."""
    if finding.first_step == finding.last_step:
        text = f"at step {finding.first_step}"
    elif finding.ongoing:
        text = f"since step {finding.first_step}"
    else:
        text = f"steps {finding.first_step} to {finding.last_step}"
    return f"{text}, new" if finding.status == "new" else text


def cleared(view: View, most: int) -> list[str]:
    """One line for each finding that has ended since the last report."""
    ended = [root.finding for root in view.cleared]
    kept = most if len(ended) <= most else most - 1
    lines = [f"resolved: {f.code} at {listed(f.where, 2)}, {since(f)}" for f in ended[:kept]]
    if len(ended) > kept:
        codes = listed([finding.code for finding in ended[kept:]], 3)
        lines.append(f"resolved: {len(ended) - kept} {'more' if kept else 'in all'} ({codes})")
    return lines


def follower(finding: Finding) -> str:
    """A finding that follows from a root, in one clause."""
    return f"{finding.code} {finding.name} ({listed(finding.where, 2)}): {finding.message}"


def details(root: Root) -> list[tuple[str, str]]:
    """The labelled lines of a root finding, in the order that a reader asks."""
    finding = root.finding
    follows = [one for one in root.follows if one.status != "resolved"]
    lines = [("expected", finding.expectation)]
    lines += [("follows", follower(one)) for one in follows[:3]]
    if len(follows) > 3:
        rest = [one.code for one in follows[3:]]
        lines.append(("follows", f"and {len(rest)} more: {listed(rest, 6)}"))
    lines.append(("seen", finding.cause))
    lines += [("try", one) for one in finding.advice[:3]]
    lines.append(("more", f"skipscope explain {finding.code}"))
    return [(label, text) for label, text in lines if text]


def expectations(view: View) -> str:
    """What the columns of the profile should hold, each with its law."""
    parts = [f"{COLUMNS[name]} {one.range} ({one.law})" for name, one in view.expected.items()]
    return ", ".join(parts)


def depth_lines(stream: StreamView) -> list[Line]:
    """The depth numbers of a stream: total growth and depth multiplier, each taken apart."""
    lines = []
    for name, (words, write) in DEPTH.items():
        value = stream.numbers.get(name)
        if value is None:
            continue
        expected = str(stream.expected.get(name, ""))
        lines.append((words.format(n=stream.sites), write(value), expected))
        if name == "total_growth" and stream.largest_growth is not None:
            place = f"  largest, {stream.largest_growth_site}"
            lines.append((place, factor(stream.largest_growth), ""))
    return lines


def update_line(view: View) -> Line:
    """Median update over matrices, and how much of the model it covers."""
    seen = view.updates
    words = f"median dW/W ({seen.measured} of {seen.trainable})"
    return words, scientific(seen.median), str(seen.expected or "")


def in_short(view: View, most: int) -> list[tuple[str, str]]:
    """The depth numbers and the updates in few lines, each number beside its expectation."""
    lines = []
    streams = sorted(view.streams, key=lambda one: -one.sites)
    for stream in streams[:most]:
        label = f"stream {stream.index}" if len(streams) > 1 else "stream"
        lines += [(label, line) for line in _stream_in_short(stream)]
    if len(streams) > most:
        others = counted(len(streams) - most, "other stream")
        lines.append(("", f"and {others}: --format json"))
    seen = view.updates
    beside = f" ({seen.expected})" if seen.expected else ""
    median = f"median dW/W {scientific(seen.median)}{beside}" if seen.measured else "not measured"
    return [*lines, ("updates", f"{median}, {seen.measured} of {seen.trainable} parameters seen")]


def _stream_in_short(stream: StreamView) -> list[str]:
    """One line for growth, one for what is inside it, one for gradients."""

    def one(words: str, name: str, write: Callable[[Number], str]) -> str:
        value, expected = stream.numbers.get(name), stream.expected.get(name)
        if value is None:
            return ""
        return f"{words} {write(value)}{f' ({expected.range})' if expected else ''}"

    growth = one("total growth", "total_growth", factor)
    if growth and stream.largest_growth is not None:
        growth += f", at most {factor(stream.largest_growth)} at {stream.largest_growth_site}"
    inside = [
        one("H", "half_depth_growth", number),
        one("H'", "half_depth_growth_without_largest", number),
        one("B", "residual_budget", number),
    ]
    whole = stream.numbers.get("depth_multiplier")
    d, healthy = stream.numbers.get("depth_factor"), stream.expected["depth_factor"].range
    each = f" = {number(d)}^{stream.sites} ({healthy} a site)"
    gradients = [
        "" if whole is None else f"depth multiplier {factor(whole)}{each}",
        one("sites", "site_multiplier", factor),
        one("links", "link_multiplier", factor),
        one("G", "gradient_ratio", number),
    ]
    lines = (growth, ", ".join(filter(None, inside)), ", ".join(filter(None, gradients)))
    return [line for line in lines if line] or ["not measured"]


def rates(lr: Sequence[Number]) -> str:
    """Learning rates of all groups: one number, or their range."""
    known = [rate for rate in lr if rate is not None]
    if not known:
        return "-"
    low, high = min(known), max(known)
    if low == high:
        return _rate(low)
    return f"{_rate(low)} to {_rate(high)} in {len(known)} groups"


def _rate(value: float) -> str:
    return number(value).replace(".0e", "e")


def training(view: View) -> str:
    """Loss, lr, skipped steps, loss scale."""
    seen = view.updates
    parts = [f"loss {number(seen.loss)}, lr {rates(seen.lr)}"]
    if seen.steps:
        parts.append(f"{seen.skipped} of {counted(seen.steps, 'watched step')} skipped")
    if seen.loss_scale is not None and seen.loss_scale != 1.0:
        parts.append(f"loss scale {number(seen.loss_scale)}")
    return ", ".join(parts)


def cost(view: View) -> str:
    """What watching cost, and how the run was watched."""
    spent: CostView = view.cost
    share = "share of step time not measured"
    if spent.captured_seconds is not None and spent.other_seconds is not None:
        # Steps differ by themselves: where captured ones are not slower, that hides what they cost.
        told = "below what step times here resolve"
        if spent.share is not None:
            told = f"{percent(spent.share)} of step time"
        captured, others = 1000 * spent.captured_seconds, 1000 * spent.other_seconds
        share = (
            f"{told} (captured {number(captured)}, others {number(others)}, host"
            f" {number(spent.host_ms)} ms)"
        )
    parts = [share, counted(spent.captures, "capture")]
    if view.run.compiled and not view.run.uncaptured:
        parts.append("captured steps ran eagerly")
    return ", ".join(parts)


def unseen(view: View) -> list[str]:
    """Additions seen and not measured, and sites of which something is missing."""
    lines = [f"no step was captured: {view.run.uncaptured}"] if view.run.uncaptured else []
    lines += [
        f"{one.where or 'model'} {one.what}{f' x{one.count}' if one.count > 1 else ''}"
        f" ({one.source}): {one.reason}"
        for one in view.unseen
        if one.what != "unrelated"  # a mask or a positional embedding: the site map lists them
    ]
    return lines + [
        f"{counted(len(names), 'site')}: {reason} ({listed(names, 3)})"
        for reason, names in view.unmeasured
    ]
