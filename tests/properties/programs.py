"""Random residual nets: a program is a list of pieces, a net is its pieces in a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.properties.taps import Taps

D = 6


@dataclass(frozen=True)
class Piece:
    """One block of a net."""

    form: str
    branch: str = "mlp"
    norm: str = "layer"
    how: str = "x + f"
    call: str = "call"  #: how its module is called
    repeat: int = 1  #: one block called so often
    drop: bool = False  #: left out in some forwards (LayerDrop)
    frozen: bool = False


@dataclass(frozen=True)
class Program:
    """A net and the way its steps go."""

    pieces: tuple[Piece, ...]
    dtype: str = "float32"
    axes: int = 3
    sizes: tuple[tuple[int, int], ...] = ((2, 3), (2, 3), (2, 3))  #: batch and length of each step
    step: str = "plain"
    stem: str = "linear"
    optimizer: str = "sgd"
    poison: tuple[int, int, str] | None = None  #: step, piece and value that is planted there
    seed: int = 0


class HandNorm(nn.Module):
    """RMSNorm written out."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3))


NORMS = {
    "none": nn.Identity,
    "layer": lambda: nn.LayerNorm(D),
    "rms": lambda: nn.RMSNorm(D),
    "hand": HandNorm,
}


class Branch(nn.Module):
    """What is learned: an MLP, attention, a convolution, a mixture of experts."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.up, self.down = nn.Linear(D, D), nn.Linear(D, D)
        if kind == "conv":
            self.mix = nn.Conv1d(D, D, 3, padding=1)
        if kind in ("experts", "gated"):
            self.gate = nn.Linear(D, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "linear":
            return torch.tanh(self.down(x))
        if self.kind == "attention":
            q = self.up(x)
            # Of an empty batch PyTorch makes zeros, with a graph that is not that of attention.
            attends = x.dim() > 2 and x.numel()
            return self.down(F.scaled_dot_product_attention(q, q, x) if attends else q * x)
        if self.kind == "conv" and x.dim() > 2:
            return torch.relu(self.mix(x.transpose(1, 2)).transpose(1, 2))
        if self.kind == "experts":
            return self.experts(x)
        if self.kind == "swish":
            h = self.up(x)
            return self.down(h * torch.sigmoid(h))
        if self.kind == "gated":
            return self.down(F.gelu(self.up(x)) * torch.sigmoid(self.gate(x)[..., :1]))
        return self.down(F.relu(self.up(x), inplace=self.kind == "in place"))

    def experts(self, x: Tensor) -> Tensor:
        """A mixture of experts that gathers its tokens and adds them up again."""
        flat = x.reshape(-1, D)
        weight, which = torch.softmax(self.gate(flat), -1).max(-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate((self.up, self.down)):
            chosen = (which == number).nonzero().squeeze(-1)
            part = torch.tanh(expert(flat[chosen])) * weight[chosen, None]
            out.index_add_(0, chosen, part.to(out.dtype))
        return out.view_as(x)


class Block(nn.Module):
    """A piece as a module; its forward says by `taps` what it adds."""

    def __init__(self, piece: Piece) -> None:
        super().__init__()
        self.piece = piece
        self.home = ""  #: its path in the net; none where the net does not know it
        self.f = Branch(piece.branch)
        self.norm = NORMS[piece.norm]()
        self.poison: str | None = None
        if piece.form in ("sandwich", "gate", "parallel", "parallel inner", "concatenation"):
            self.g = Branch("linear")
        if piece.form in ("projection", "nested", "fused", "condition"):
            self.side = nn.Linear(D, D)
        if piece.form == "nested":
            self.inner = Block(Piece("pre-norm", how=piece.how))
        if piece.form == "concatenation":
            self.join = nn.Linear(2 * D, D)
        if piece.form in ("layer scale", "rezero", "shift", "scaled by weight"):
            start = {"rezero": 0.0, "layer scale": 0.1}.get(piece.form, 0.8)
            self.scale = nn.Parameter(torch.full((D if piece.form != "rezero" else 1,), start))
        self.requires_grad_(not piece.frozen)

    def branch(self, x: Tensor) -> Tensor:
        f = self.f(self.norm(x))
        if self.poison is not None:
            f = f.masked_fill(torch.ones_like(f, dtype=torch.bool).tril(), float(self.poison))
        return f

    def forward(
        self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool = False
    ) -> Tensor | tuple[Tensor, None]:
        method = getattr(self, _METHODS[self.piece.form])
        y: Tensor = method(x, c, taps, path, nested)
        return (y, None) if self.piece.call == "keywords" else y

    def add(self, taps: Taps, path: str, x: Tensor, s: Tensor, f: Tensor, nested: bool) -> Tensor:
        return taps.add(path, x, s, f, self.piece.how, "identity", nested)

    # ------------------------------------------------------------------ sites
    def pre_norm(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        return self.add(taps, path, x, x, self.branch(x), nested)

    def post_norm(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        return self.norm(self.add(taps, path, x, x, self.f(x), nested))

    def sandwich(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        return self.add(taps, path, x, x, self.norm(self.f(self.norm(x))), nested)

    def two(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        x = self.add(taps, path, x, x, self.branch(x), nested)
        return self.add(taps, path, x, x, self.f(self.norm(x)), nested)

    def scaled(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        return taps.add(path, x, 0.6 * x, self.branch(x), self.piece.how, "scaled", nested)

    def scaled_by_weight(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        s = self.scale * x
        return taps.add(path, x, s, self.branch(x), self.piece.how, "scaled", nested)

    def projection(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        s = self.side(x)
        return taps.add(path, x, s, self.branch(x), self.piece.how, "projection", nested)

    def times_weight(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        return self.add(taps, path, x, x, self.branch(x) * self.scale, nested)

    def dropped(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        """Stochastic depth, each sample for itself."""
        mask = (torch.rand(x.shape[0], *[1] * (x.dim() - 1)) < 0.7).to(x.dtype) / 0.7
        return self.add(taps, path, x, x, self.branch(x) * mask, nested)

    def parallel(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        """Attention and MLP beside each other, added one after the other."""
        a, m = self.branch(x), self.g(x)
        total = (x + a) + m
        return taps.summed(path, x, x, a.detach().double() + m.detach().double(), total)

    def parallel_inner(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        return self.add(taps, path, x, x, self.branch(x) + self.g(x), nested)

    def nest(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        inside = self.inner(self.side(x), c, taps, f"{self.home}.inner" if self.home else "", True)
        return self.add(taps, path, x, x, self.f(inside), nested)

    def detached(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        return self.add(taps, path, x, x.detach(), self.branch(x), nested)

    def detached_branch(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        return self.add(taps, path, x, x, self.branch(x.detach()), nested)

    def rewriting(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        """The stream's own tensor is written to."""
        x = x.clone()
        return taps.add(path, x, x, self.f(torch.relu(x)), "x += f", "identity", nested)

    # ------------------------------------------------------------------ no sites
    def gate(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        t = torch.sigmoid(self.g(x))
        return t * self.branch(x) + (1 - t) * x

    def concatenation(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        return self.join(torch.cat([x, self.branch(x)], -1))

    def shift(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        return x + self.scale

    def condition(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        return x + self.side(c)

    def fused(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        first = torch.arange(min(1, x.shape[0]))
        return x.index_add(0, first, torch.tanh(self.side(x[first])).to(x.dtype))

    def plain(self, x: Tensor, c: Tensor, taps: Taps, path: str, nested: bool) -> Tensor:
        return self.branch(x)


_METHODS = {
    "pre-norm": "pre_norm",
    "post-norm": "post_norm",
    "sandwich": "sandwich",
    "two": "two",
    "scaled": "scaled",
    "scaled by weight": "scaled_by_weight",
    "projection": "projection",
    "layer scale": "times_weight",
    "rezero": "times_weight",
    "dropped": "dropped",
    "parallel": "parallel",
    "parallel inner": "parallel_inner",
    "nested": "nest",
    "detached": "detached",
    "detached branch": "detached_branch",
    "rewriting": "rewriting",
    "gate": "gate",
    "concatenation": "concatenation",
    "shift": "shift",
    "condition": "condition",
    "fused": "fused",
    "plain": "plain",
}
FORMS = tuple(_METHODS)


class Net(nn.Module):
    """A program's net."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.stem = nn.Linear(D, D).requires_grad_(program.stem != "frozen")
        self.blocks = nn.ModuleDict()
        self.hidden: list[Block] = []  # a plain list, which the module does not know of
        self.order: list[Block] = []
        for number, piece in enumerate(program.pieces):
            block = Block(piece)
            if piece.call == "list":
                self.hidden.append(block)
            else:
                block.home = f"blocks.{number}"
                self.blocks[str(number)] = block
            self.order.append(block)
        self.head = nn.Linear(D, 1)

    def every_parameter(self) -> list[nn.Parameter]:
        found = [*self.parameters(), *[p for block in self.hidden for p in block.parameters()]]
        return [parameter for parameter in found if parameter.requires_grad]

    def forward(self, x: Tensor, c: Tensor, taps: Taps) -> Tensor:
        x = x if self.program.stem == "none" else self.stem(x)
        for block in self.order:
            piece = block.piece
            if piece.drop and torch.rand(()) < 0.4:
                continue
            for _ in range(piece.repeat):
                x = self.call(block, x, c, taps)
                taps.saw(x)
        return self.head(x)

    def call(self, block: Block, x: Tensor, c: Tensor, taps: Taps) -> Tensor:
        how, path = block.piece.call, block.home
        if how == "forward":
            return block.forward(x, c, taps, "")
        if how == "checkpoint":
            return checkpoint(block, x, c, taps, path, use_reentrant=False)
        if how == "keywords":
            return block(x=x, c=c, taps=taps, path=path)[0]
        return block(x, c, taps, path)
