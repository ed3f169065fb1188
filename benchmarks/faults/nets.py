"""The healthy nets: a plan of numbers that a seed draws, and the net that it describes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.faults.data import CLASSES, TOKENS, VOCABULARY
from benchmarks.faults.parts import (
    Attention,
    Block,
    Branch,
    Convolutions,
    LowRank,
    Mlp,
    ModulatedBranch,
    Pair,
)


@dataclass(frozen=True)
class Plan:
    """One net and how it is trained."""

    family: str
    task: str
    sites: int
    width: int
    batch: int
    optimizer: str
    lr: float
    weight_decay: float
    warmup: int
    cosine: bool
    bf16: bool  #: autocast; the weights stay in float32
    embedding: float  #: standard deviation of the token embedding
    drop: float  #: rate of stochastic depth
    variant: str  #: "", "frozen" (the first blocks) or "lora"
    nested: bool  #: each addition in a module of its own
    preset: str
    steps: int


class Net(nn.Module):
    """Stem, blocks along the depth, head."""

    def __init__(
        self,
        stem: nn.Module,
        blocks: list[nn.Module],
        head: nn.Module,
        condition: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.stem = stem
        self.blocks = nn.ModuleList(blocks)
        self.head = head
        self.condition = condition

    def forward(self, x: Tensor) -> Tensor:
        context = self.condition(x) if self.condition is not None else None
        h = self.stem(x)
        for block in self.blocks:
            h = block(h, context)
        out: Tensor = self.head(h)
        return out


class EncoderDecoder(nn.Module):
    """Reads one piece of text and writes the next."""

    def __init__(self, encoder: list[nn.Module], decoder: list[nn.Module], plan: Plan) -> None:
        super().__init__()
        self.embed, self.embed_target = Embedding(plan), Embedding(plan)
        self.encoder, self.decoder = nn.ModuleList(encoder), nn.ModuleList(decoder)
        self.memory_norm = nn.LayerNorm(plan.width)
        self.head = nn.Sequential(nn.LayerNorm(plan.width), nn.Linear(plan.width, VOCABULARY))

    def forward(self, pair: Tensor) -> Tensor:
        h = self.embed(pair[:, 0])
        for block in self.encoder:
            h = block(h)
        memory = self.memory_norm(h)
        h = self.embed_target(pair[:, 1])
        for block in self.decoder:
            h = block(h, memory)
        out: Tensor = self.head(h)
        return out


class Embedding(nn.Module):
    """Of tokens and of their places."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, plan.width)
        self.place = nn.Parameter(torch.randn(TOKENS, plan.width) * 0.5 * plan.embedding)
        nn.init.normal_(self.token.weight, std=plan.embedding)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.token(tokens) + self.place
        return out


class Rows(nn.Module):
    """The eight rows of an image as tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inside = nn.Linear(8, width)
        self.place = nn.Parameter(torch.randn(8, width) * 0.5)

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.inside(rows) + self.place
        return out


class Mean(nn.Module):
    """The mean over tokens or positions."""

    def __init__(self, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.axes)


# ------------------------------------------------------------------------------ transformers
def _transformer_branch(plan: Plan, body: nn.Module) -> nn.Module:
    def norm() -> nn.Module:
        return nn.LayerNorm(plan.width)

    if plan.family == "adaln-zero":
        return ModulatedBranch(body, plan.width)
    if plan.family == "post-norm":
        return Branch(body, drop=plan.drop)
    if plan.family == "rezero":
        return Branch(body, scale=torch.zeros(1), drop=plan.drop)
    if plan.family == "sandwich":
        return Branch(body, norm(), norm(), drop=plan.drop)
    scale = torch.full((plan.width,), 1e-4) if plan.family == "layerscale" else None
    return Branch(body, norm(), scale=scale, drop=plan.drop)


def _transformer_block(plan: Plan, causal: bool, cross: bool = False) -> nn.Module:
    bodies: dict[str, nn.Module] = {"attention": Attention(plan.width, 2, causal)}
    if cross:
        bodies["cross"] = Attention(plan.width, 2, False, cross=True)
    bodies["mlp"] = Mlp(plan.width, 2 * plan.width)
    branches = {name: _transformer_branch(plan, body) for name, body in bodies.items()}
    after: dict[str, nn.Module] = {}
    if plan.family == "post-norm":
        after = {name: nn.LayerNorm(plan.width) for name in branches}
    if not plan.nested:
        return Block(branches, after=after)
    return Pair(**{name: Block({"branch": branch}, after={"branch": after[name]} if after else {})
                   for name, branch in branches.items()})  # fmt: skip


def _transformer(plan: Plan) -> nn.Module:
    reads_text = plan.task == "text"
    stem = Embedding(plan) if reads_text else Rows(plan.width)
    head = nn.Sequential(
        nn.LayerNorm(plan.width),
        nn.Identity() if reads_text else Mean((1,)),
        nn.Linear(plan.width, VOCABULARY if reads_text else CLASSES),
    )
    condition = None
    if plan.family == "adaln-zero":
        condition = nn.Sequential(nn.Flatten(), nn.Linear(64, plan.width))
    blocks = [_transformer_block(plan, reads_text) for _ in range(plan.sites // 2)]
    return Net(stem, blocks, head, condition)


def _encoder_decoder(plan: Plan) -> nn.Module:
    encoder = [_transformer_block(plan, False) for _ in range(max(plan.sites // 5, 2))]
    decoder = [_transformer_block(plan, True, cross=True) for _ in range(max(plan.sites // 5, 2))]
    return EncoderDecoder(encoder, decoder, plan)


# ------------------------------------------------------------------------------ images, vectors
def _conv_block(plan: Plan, width_in: int, width: int) -> Block:
    stride = 1 if width_in == width else 2
    shortcut = nn.Conv2d(width_in, width, 1, stride) if stride == 2 else None
    if plan.family == "norm-free-cnn":
        body = Convolutions(width_in, width, stride, norm=False)
        for conv in (body.conv1, body.conv2):
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        return Block({"branch": Branch(body, nn.ReLU(), factor=plan.sites**-0.5, drop=plan.drop)},
                     shortcut)  # fmt: skip
    body = Convolutions(width_in, width, stride, norm=True)
    if plan.family == "pre-activation-cnn":
        before = nn.Sequential(nn.BatchNorm2d(width_in), nn.ReLU())
        return Block({"branch": Branch(body, before, drop=plan.drop)}, shortcut)
    last = nn.BatchNorm2d(width)
    if plan.family == "zero-gamma-cnn":
        nn.init.zeros_(last.weight)
    return Block({"branch": Branch(body, after=last, drop=plan.drop)}, shortcut,
                 after={"branch": nn.ReLU()})  # fmt: skip


def _cnn(plan: Plan) -> nn.Module:
    narrow, wide = plan.width // 2, plan.width
    half = plan.sites - plan.sites // 2
    widths = [narrow] * (half + 1) + [wide] * (plan.sites - half)
    blocks: list[nn.Module] = [_conv_block(plan, *widths[at : at + 2]) for at in range(plan.sites)]
    stem = nn.Sequential(nn.Conv2d(1, narrow, 3, 1, 1))
    if plan.family != "norm-free-cnn":
        stem.append(nn.BatchNorm2d(narrow))
    return Net(stem, blocks, nn.Sequential(nn.ReLU(), Mean((2, 3)), nn.Linear(wide, CLASSES)))


def _mlp_block(plan: Plan) -> Block:
    body = Mlp(plan.width, plan.width, F.relu)
    for linear in (body.fc1, body.fc2):
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
    if plan.family == "batch-norm-mlp":
        return Block({"branch": Branch(body, nn.BatchNorm1d(plan.width), drop=plan.drop)})
    if plan.family == "rezero-mlp":
        return Block({"branch": Branch(body, scale=torch.zeros(1), drop=plan.drop)})
    return Block({"branch": Branch(body, factor=plan.sites**-0.5, drop=plan.drop)})


def _mlp(plan: Plan) -> nn.Module:
    blocks: list[nn.Module] = [_mlp_block(plan) for _ in range(plan.sites)]
    head = nn.Sequential(nn.LayerNorm(plan.width), nn.Linear(plan.width, CLASSES))
    return Net(nn.Linear(64, plan.width), blocks, head)


#: Family -> how it is built, and the tasks it can learn.
FAMILIES: Mapping[str, tuple[Callable[[Plan], nn.Module], tuple[str, ...]]] = {
    "pre-norm": (_transformer, ("text", "text", "rows")),
    "post-norm": (_transformer, ("text", "rows")),
    "sandwich": (_transformer, ("text", "rows")),
    "rezero": (_transformer, ("text", "rows")),
    "layerscale": (_transformer, ("text", "rows")),
    "adaln-zero": (_transformer, ("rows",)),
    "encoder-decoder": (_encoder_decoder, ("pairs",)),
    "pre-activation-cnn": (_cnn, ("image",)),
    "post-activation-cnn": (_cnn, ("image",)),
    "zero-gamma-cnn": (_cnn, ("image",)),
    "norm-free-cnn": (_cnn, ("image",)),
    "batch-norm-mlp": (_mlp, ("flat",)),
    "norm-free-mlp": (_mlp, ("flat",)),
    "rezero-mlp": (_mlp, ("flat",)),
}
TRANSFORMERS = ("pre-norm", "post-norm", "sandwich", "rezero", "layerscale", "adaln-zero")
CNNS = ("pre-activation-cnn", "post-activation-cnn", "zero-gamma-cnn", "norm-free-cnn")
MLPS = ("batch-norm-mlp", "norm-free-mlp", "rezero-mlp")
#: Numbers of sites that are drawn for short runs; what a run costs grows with them.
DEPTHS = (*[8] * 7, *[10] * 4, *[12] * 3, 16, 16, 20, 24, 32, 48)
#: How often a family is drawn for long runs, beside the 2 of others: what they cost.
LONG_RUNS_OF = {**dict.fromkeys(CNNS, 1), **dict.fromkeys(MLPS, 6)}
#: Branches that add nothing at step 0.
ZERO_START = ("rezero", "rezero-mlp", "adaln-zero", "zero-gamma-cnn", "layerscale")


def draw(rng: random.Random, families: tuple[str, ...] = (), preset: str = "") -> Plan:
    """Draws a plan; a quarter of them are long runs of small nets with the default preset."""
    preset = preset or ("train" if rng.random() < 0.25 else "debug")
    long = preset == "train"
    among = families or tuple(FAMILIES)
    weights = [LONG_RUNS_OF.get(family, 2) if long else 2 for family in among]
    family = rng.choices(among, weights)[0]
    sgd = rng.random() < (0.2 if family in TRANSFORMERS or family == "encoder-decoder" else 0.6)
    sites = 8 if long else rng.choice(DEPTHS)
    steps = 1500 if long else rng.choice((36, 50, 60, 100) if sites < 16 else (36, 50))
    warm = rng.random() < 0.4 or family == "post-norm"
    if family == "encoder-decoder":
        sites = 10 if long else rng.choice((10, 10, 10, 20))
    lr = rng.choice((0.003, 0.01, 0.03)) if sgd else rng.choice((2e-4, 5e-4, 1e-3, 3e-3))
    if family in ("post-norm", "norm-free-cnn", "norm-free-mlp") or sites > 24:
        lr /= 3  # what still trains there
    return Plan(
        family=family,
        task=rng.choice(FAMILIES[family][1]),
        sites=sites,
        width=16 if long else rng.choice((16, 16, 24, 32)),
        batch=8 if long else rng.choice((8, 16, 32)),
        optimizer="sgd" if sgd else "adamw",
        lr=lr,
        weight_decay=rng.choice((0.0, 1e-4)) if sgd else rng.choice((0.0, 0.01, 0.1)),
        warmup=(rng.choice((10, 20)) if not long else 100) if warm else 0,
        cosine=rng.random() < 0.4,
        bf16=rng.random() < 0.2,
        embedding=rng.choice((0.02, 0.02, 0.2, 1.0)),
        drop=rng.choice((0.1, 0.2)) if rng.random() < 0.2 and family != "adaln-zero" else 0.0,
        variant=_variant(rng, family),
        nested=rng.random() < 0.5,
        preset=preset,
        steps=steps,
    )


def _variant(rng: random.Random, family: str) -> str:
    chosen = rng.choice(("frozen", "lora")) if rng.random() < 0.2 else ""
    return "frozen" if chosen == "lora" and family in CNNS else chosen


def build(plan: Plan) -> nn.Module:
    """The net of a plan, with torch's generator as it stands."""
    model = FAMILIES[plan.family][0](plan)
    blocks = [block for name in ("blocks", "encoder") for block in getattr(model, name, ())]
    if plan.variant == "frozen":
        for stem in ("stem", "embed", "condition"):
            part = getattr(model, stem, None)
            if part is not None:
                part.requires_grad_(False)
        for block in blocks[: max(len(blocks) // 3, 1)]:
            block.requires_grad_(False)
    elif plan.variant == "lora":
        _adapt(model, blocks)
    return model


def _adapt(model: nn.Module, blocks: list[nn.Module]) -> None:
    """Only thin matrices beside those of the blocks, and the head, learn."""
    model.requires_grad_(False)
    model.get_submodule("head").requires_grad_(True)
    for block in [*blocks, *getattr(model, "decoder", ())]:
        for path, module in list(block.named_modules()):
            if isinstance(module, nn.Linear) and not path.endswith("modulation"):
                parent, _, name = path.rpartition(".")
                setattr(block.get_submodule(parent), name, LowRank(module))
        for module in block.modules():
            if isinstance(module, Branch) and module.scale is not None:
                module.scale.requires_grad_(True)
            if isinstance(module, ModulatedBranch):
                module.modulation.requires_grad_(True)
