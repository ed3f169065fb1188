"""The records that travel between the rooms: frozen, plain, each field with its unit.

Nothing here computes. A record can be written down by hand, which is how every room is tested.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Kind = Literal["identity", "scaled", "projection"]
ShortcutSource = Literal["same", "detached", "rewritten"]
NormPlacement = Literal[
    "none", "pre-norm", "post-norm", "sandwich", "branch-norm", "pre-activation", "post-activation"
]
Severity = Literal["info", "warning", "error"]
Status = Literal["new", "continuing", "resolved"]
Merge = Literal["sum", "max", "min", "local"]


@dataclass(frozen=True)
class Field:
    """One number of a record's fixed vector, and how it merges over ranks and micro-batches."""

    name: str
    merge: Merge
    doc: str


#: What a capture keeps of one site: plain sums, from which every measure is a formula.
#: `s` is the shortcut, `f` the branch (as really added: alpha and sign included), `y = s + f`,
#: `x` the input of the block. Sums run over all elements of the operands as expanded.
SUMS: tuple[Field, ...] = (
    Field("n", "sum", "elements of the sum y"),
    Field("s", "sum", "sum of s"),
    Field("f", "sum", "sum of f"),
    Field("ss", "sum", "sum of s^2"),
    Field("ff", "sum", "sum of f^2"),
    Field("sf", "sum", "sum of s*f"),
    Field("yy", "sum", "sum of y^2, formed from the operands before the addition"),
    Field("max_s", "max", "largest |s|"),
    Field("max_f", "max", "largest |f|"),
    Field("max_y", "max", "largest |s + f|, formed in float64 (can exceed the dtype's range)"),
    Field("min_f", "min", "smallest f, with its sign"),
    Field("n_x", "sum", "elements of x"),
    Field("x", "sum", "sum of x"),
    Field("xx", "sum", "sum of x^2"),
    Field("max_x", "max", "largest |x|"),
    Field("rows", "sum", "tokens or samples (see Site.rows)"),
    Field("samples", "sum", "samples: length of the first axis"),
    Field("zero_s", "sum", "samples in which every element of s is 0"),
    Field("zero_f", "sum", "samples in which every element of f is 0"),
    Field("influence", "sum", "sum over rows of 1 - cos(x, y)"),
    Field("row_cosine", "sum", "sum of cos(y_i, y_j), rows i != j: tokens of a sample, or samples"),
    Field("row_pairs", "sum", "number of those (i, j), rows of 0 left out"),
    Field("channel", "local", "mean over channels of (mean of y in that channel)^2"),
    Field("r_median", "local", "median over rows of |f|/|s|, rows with f = 0 or s = 0 left out"),
    Field("gy", "sum", "sum of g_y^2: gradient at the sum"),
    Field("gx", "sum", "sum of g_x^2: whole gradient at the input, every reader included"),
    Field("gi", "sum", "sum of squares of the identity part, what flows to x through the shortcut"),
    Field("gb", "sum", "sum of squares of the branch part, what flows to x through the branch"),
    Field("gib", "sum", "sum of identity part * branch part"),
    Field("gxy", "sum", "sum of g_x * g_y, where the shapes agree"),
)

#: What an optimizer step keeps of one parameter.
PARAMETER_SUMS: tuple[Field, ...] = (
    Field("n", "sum", "elements"),
    Field("ww", "sum", "sum of w^2 before the step"),
    Field("gg", "sum", "sum of gradient^2: unscaled, after accumulation, before clipping"),
    Field("dd", "sum", "sum of (w after - w before)^2"),
    Field("changed", "sum", "elements that the step changed"),
)

#: Bits of the `have` mask of one site in one capture: what was measured at all.
#: (A NaN in a measured field is a result; an absent bit means "not measured".)
HAVE_FORWARD, HAVE_INPUT, HAVE_GRAD, HAVE_INPUT_GRAD, HAVE_SPLIT = 1, 2, 4, 8, 16
#: Bits of the `have` mask of one parameter in one step.
HAVE_WEIGHT, HAVE_GRADIENT, HAVE_UPDATE = 1, 2, 4

#: Why something at a site is missing; a capture stores the position in this tuple.
REASONS: tuple[str, ...] = (
    "",
    "not called in this step",
    "no backward reached it",
    "x has no gradient: it is a raw input or behind frozen layers",
    "the whole block is frozen",
    "x was overwritten in place through a view",
    "watched as a whole module: its two paths cannot be told apart",
    "only a backward with create_graph reached it",
    "no graph: it ran under no_grad",
    "operands of this type cannot be reduced",
    "only a vectorized backward reached it",
)


#: What a site is known by over time, and from rank to rank: module, source, occurrence.
Key = tuple[str, str, int]


@dataclass(frozen=True)
class Site:
    """One residual addition `y = s + F(x)`."""

    index: int  #: given once, in order of discovery; never changes within a run
    depth: int  #: position along its stream, from 0; a nested site has that of its block
    name: str  #: readable and unique, from ``[A-Za-z0-9_./-]``: module path, with more where needed
    module: str  #: path as in `named_modules()` of the innermost module that adds
    source: str  #: "file.py:line" of the addition
    occurrence: int  #: k-th time at this module and line in one forward, from 0
    kind: Kind
    broadcast: bool  #: the operands' shapes differ
    alpha: float  #: coefficient of the branch in the sum, sign included (f holds it already)
    shortcut_source: ShortcutSource
    shortcut_path: tuple[str, ...]  #: what stands between x and s ("convolution", "scale", ...)
    stream: int  #: number of the stream it belongs to
    stage: int  #: number of the stage (equal shape) within the stream
    link: tuple[str, ...]  #: what stands between the previous sum of the stream and x
    norm_placement: NormPlacement
    nested: bool  #: inside the branch of another site; depth profiles leave it out
    parallel: bool  #: branches of several additions to one x, reported as one site
    other_readers: bool  #: x is read outside this site too
    shape: tuple[int, ...]  #: of the sum at discovery, batch axis included
    rows: Literal["token", "sample"]  #: what a row is: last axis reduced, or all but the first
    shortcut_dtype: str
    branch_dtype: str
    parameters: tuple[str, ...]  #: names of the branch's parameters that autograd sees
    watched: Literal["addition", "module"] = "addition"  #: "module": named in `sites=`, block level

    @property
    def key(self) -> Key:
        """Its identity over time."""
        return self.module, self.source, self.occurrence


@dataclass(frozen=True)
class Stream:
    """A chain of sites, each of whose shortcuts leads back to the previous sum."""

    index: int
    sites: tuple[int, ...]  #: indices of its block-level sites along depth
    embedding_fed: bool  #: the first x comes from an embedding
    pure: bool  #: nothing stands between sum and next x anywhere


@dataclass(frozen=True)
class Unseen:
    """Something that is, or may be, an addition but is not measured; never "missing"."""

    what: Literal[
        "gate",
        "concatenation",
        "fused",
        "stack-sum",
        "no graph",
        "transform",
        "unrelated",
        "not watched",
        "left out",
    ]
    where: str  #: module path
    source: str  #: "file.py:line"
    count: int
    reason: str


@dataclass(frozen=True)
class ModuleClass:
    """One row of the inventory: a class of called modules and the additions inside its own code."""

    name: str  #: class name
    paths: tuple[str, ...]  #: called instances, in call order
    additions: tuple[int, ...]  #: number of residual additions for each of them


@dataclass(frozen=True)
class SiteMap:
    """Everything that discovery knows of a model."""

    sites: tuple[Site, ...] = ()
    streams: tuple[Stream, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    modules: tuple[ModuleClass, ...] = ()

    @property
    def block_level(self) -> tuple[Site, ...]:
        """The sites that are not nested in another site's branch, by stream and depth."""
        chosen = (site for site in self.sites if not site.nested)
        return tuple(sorted(chosen, key=lambda site: (site.stream, site.depth, site.index)))

    def __str__(self) -> str:
        """A plain-text table: one line per site, then what was seen and is not measured."""
        head = ("depth", "site", "kind", "stream", "norm", "source")
        rows = [head] + [
            (
                f"{site.depth}{' nested' if site.nested else ''}",
                site.name,
                site.kind,
                str(site.stream),
                site.norm_placement,
                site.source,
            )
            for site in sorted(self.sites, key=lambda site: (site.stream, site.depth, site.index))
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        ]
        lines += [f"not measured: {u.where} {u.what} ({u.source}): {u.reason}" for u in self.unseen]
        return "\n".join(line.rstrip() for line in lines)


def essence(sites: SiteMap) -> SiteMap:
    """A site map without what changes from forward to forward without meaning anything."""
    return replace(sites, unseen=tuple(replace(unseen, count=0) for unseen in sites.unseen))


@dataclass(frozen=True)
class Parameter:
    """One parameter of the model."""

    index: int
    name: str  #: as in `named_parameters()`
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    group: int | None  #: number of its optimizer group over all optimizers; None: in no group
    role: str  #: its place in blocks of one class: equal for the same weight of sibling blocks
    block: str  #: module path of the repeated block that holds it ("" outside of blocks)
    sites: tuple[int, ...]  #: sites whose branch it belongs to
    owner: str = ""  #: class name of the module that owns it


@dataclass(frozen=True)
class Group:
    """One parameter group of an optimizer, as it was at the start."""

    index: int
    optimizer: str  #: class name
    options: Mapping[str, float | bool | str | None]  #: lr, betas, weight_decay ... plain values


@dataclass(frozen=True)
class Run:
    """Facts about the run as a whole."""

    run_id: str = ""
    skipscope: str = ""
    torch: str = ""
    model: str = ""  #: class name
    preset: str = "train"
    every_n_steps: int = 50
    ranks: int = 1  #: processes of the run
    ranks_measured: int = 1  #: so many of them the numbers stand for
    device: str = "cpu"
    precision: str = ""
    compiled: bool = False  #: captured steps ran eagerly although the model is compiled
    uncaptured: str = ""  #: why no step is captured, where none is
    intervention: str = ""  #: what its sums were when it began, where not the model's own
    fresh: bool = True  #: no optimizer step was taken and no checkpoint loaded before the start
    #: which rules judge it: `select`, `ignore` and `thresholds` as JSON, where they were set
    rules: Mapping[str, str] = field(default_factory=dict)


#: Columns of the step facts; learning rates follow, one column a group ("lr.0", "lr.1", ...).
FACTS: tuple[Field, ...] = (
    Field("step", "local", "optimizer step, the axis of every table, from 0"),
    Field("epoch", "local", "epoch, from 0"),
    Field("global_step", "local", "the trainer's own counter"),
    Field("loss", "local", "loss of the step, NaN where unknown"),
    Field("loss_scale", "local", "factor of a GradScaler, 1 without"),
    Field("skipped", "local", "1 where no optimizer stepped (AMP overflow, None loss)"),
    Field("captured", "local", "1 where forward and backward were captured"),
    Field("seconds", "local", "wall time from the start of this step to the start of the next"),
    Field("host_ms", "local", "milliseconds the monitor itself spent on the host in this step"),
)


@dataclass(frozen=True)
class Finding:
    """What a rule found."""

    code: str
    name: str
    severity: Severity
    where: tuple[str, ...]  #: sites, module or parameter paths, or ("model",)
    first_step: int
    last_step: int
    message: str  #: one sentence, with the number
    evidence: Mapping[str, float | str] = field(default_factory=dict)
    expectation: str = ""  #: what was expected, naming its law
    cause: str = ""  #: what most likely did it, where the evidence shows it
    follows: tuple[str, str] | None = None  #: (code, place) of the root finding; None for a root
    advice: tuple[str, ...] = ()  #: at most three things to try
    #: against the last report of this run: not in it, in it already, or ended
    status: Status = "new"
    ongoing: bool = True  #: seen in the last step in which its rule could look at its places
    told: bool = False  #: it has ended, and an earlier report has said so

    @property
    def new(self) -> bool:
        """Whether the last report did not have it."""
        return self.status == "new"


@dataclass(frozen=True)
class Passed:
    """A rule that looked and found nothing."""

    code: str
    name: str


@dataclass(frozen=True)
class Skipped:
    """A rule that could not look, or a part of one, and why."""

    code: str
    name: str
    reason: str


@dataclass(frozen=True)
class Diagnosis:
    """The outcome of every rule: found, passed or skipped."""

    findings: tuple[Finding, ...] = ()
    passed: tuple[Passed, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    step: int = 0  #: last step the diagnosis knows
    epoch: int = 0
    #: rules that looked and found or passed, but with a part that could not look
    in_part: tuple[Skipped, ...] = ()

    @property
    def roots(self) -> tuple[Finding, ...]:
        """Findings that follow from no other, gravest first, those that have ended too."""
        order = {"error": 0, "warning": 1, "info": 2}
        found = (finding for finding in self.findings if finding.follows is None)
        return tuple(sorted(found, key=lambda finding: order[finding.severity]))

    @property
    def standing(self) -> tuple[Finding, ...]:
        """The roots that have not ended, gravest first."""
        return tuple(finding for finding in self.roots if finding.status != "resolved")

    @property
    def resolved(self) -> tuple[Finding, ...]:
        """The roots that have ended since the last report."""
        return tuple(f for f in self.roots if f.status == "resolved" and not f.told)

    def count(self, *severities: Severity) -> int:
        """How many root findings of these severities stand."""
        return sum(finding.severity in severities for finding in self.standing)
