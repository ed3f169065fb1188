"""One small net a trap: a few equal blocks, each with one way of writing (or not) an addition."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

WIDTH = 8


class Branch(nn.Module):
    """F: norm, linear, GELU, linear; with spare parts that some traps use."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, width), nn.Linear(width, width)
        self.side = nn.Linear(width, width)
        self.normed = weight_norm(nn.Linear(width, width))
        self.weight = nn.Parameter(torch.randn(width))
        self.small = nn.Linear(width // 2, width // 2)

    def inner(self, x: Tensor) -> Tensor:
        return F.gelu(self.fc1(self.norm(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.inner(x))


Step = Callable[[Branch, Tensor], Tensor]


class Block(nn.Module):
    """A block whose forward is `step(branch, x)`; x is its input."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.branch = Branch()
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self.branch, x)


class Net(nn.Module):
    """A stem (unless told otherwise), equal blocks, a head."""

    def __init__(self, step: Step, depth: int = 3, stem: bool = True, shared: bool = False) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH) if stem else None
        self.blocks = nn.ModuleList(Block(step) for _ in range(1 if shared else depth))
        self.repeats = depth if shared else 1
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.stem is None else self.stem(x)
        for _ in range(self.repeats):
            for block in self.blocks:
                x = block(x)
        return self.head(x)


# ------------------------------------------------------------- ways of writing the addition
def keywords(f: Branch, x: Tensor) -> Tensor:
    return torch.add(input=x, other=f(x), alpha=0.5)


def scaled_other(f: Branch, x: Tensor) -> Tensor:
    return torch.add(f(x), other=x, alpha=2.0)


def reflected(f: Branch, x: Tensor) -> Tensor:
    return f(x).__radd__(x)


def method(f: Branch, x: Tensor) -> Tensor:
    return x.add(f(x))


def in_place(f: Branch, x: Tensor) -> Tensor:
    return torch.relu_(f(x).add_(x))


def in_place_view(f: Branch, x: Tensor) -> Tensor:
    out = torch.cat([f(x), f.side(x)], -1)[..., :WIDTH]
    out += x
    return out


def builtin_sum(f: Branch, x: Tensor) -> Tensor:
    return sum([x, f(x)])


def stacked(f: Branch, x: Tensor) -> Tensor:
    return torch.stack([x, f(x)]).sum(0)


def fused_matmul(f: Branch, x: Tensor) -> Tensor:
    return torch.addmm(x, f.inner(x), f.fc2.weight)


def fused_product(f: Branch, x: Tensor) -> Tensor:
    return torch.addcmul(x, f.weight, f(x))


def minus_branch(f: Branch, x: Tensor) -> Tensor:
    return x - f(x)


def minus_shortcut(f: Branch, x: Tensor) -> Tensor:
    return torch.sub(f(x), x)


def trailing_bias(f: Branch, x: Tensor) -> Tensor:
    return x + f(x) + f.weight


def broadcast(f: Branch, x: Tensor) -> Tensor:
    return x + f(x).mean(1, keepdim=True)


# ------------------------------------------------------------------------- shortcuts
def transparent(f: Branch, x: Tensor) -> Tensor:
    s = F.dropout(x.transpose(0, 1).contiguous().transpose(0, 1), 0.1)
    return s.to(torch.float64).float().view_as(x) + f(x)


def constant_scale(f: Branch, x: Tensor) -> Tensor:
    return x / 2.0 + f(x)


def learned_scale(f: Branch, x: Tensor) -> Tensor:
    return f.weight * x + f(x)


def gated(f: Branch, x: Tensor) -> Tensor:
    return x * torch.sigmoid(f.side(x)) + f(x)


def projected(f: Branch, x: Tensor) -> Tensor:
    return f.side(x) + f(x)


def computed_weight(f: Branch, x: Tensor) -> Tensor:
    return f.normed(x) + f(x)


def normed_shortcut(f: Branch, x: Tensor) -> Tensor:
    return F.layer_norm(x, (WIDTH,)) + f.fc2(F.gelu(f.fc1(x)))


def detached(f: Branch, x: Tensor) -> Tensor:
    return x.detach() + f(x)


def rewritten(f: Branch, x: Tensor) -> Tensor:
    return f(F.relu(x, inplace=True)) + x


def slice_of_x(f: Branch, x: Tensor) -> Tensor:
    half, out = WIDTH // 2, f(x)
    return torch.cat([x[..., :half] + out[..., :half], x[..., half:]], -1)


# ---------------------------------------------------------------- not residual additions
def sibling_slices(f: Branch, x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([torch.relu(f.small(b)) + a, b], -1)


def two_linear_maps(f: Branch, x: Tensor) -> Tensor:
    return torch.relu(f.fc1(x) + f.fc2(x))


def two_branches(f: Branch, x: Tensor) -> Tensor:
    return torch.tanh(f.fc1(torch.relu(x.flip(-1) * 2))) + torch.sin(f.fc2(torch.tanh(x)))


def rotation(f: Branch, x: Tensor) -> Tensor:
    q = f.fc1(x)
    a, b = q.chunk(2, -1)
    return torch.relu(f.fc2(q * 0.6 + torch.cat([-b, a], -1) * 0.8))


# ----------------------------------------------- additions beside one that is residual
def position_each_time(f: Branch, x: Tensor) -> Tensor:
    x = x + f.weight
    return x + f(x)


def noise(f: Branch, x: Tensor) -> Tensor:
    x = x + 0.1 * torch.randn_like(x)
    return x + f(x)


def modulated(f: Branch, x: Tensor) -> Tensor:
    scale, shift = f.small(x.mean(1)[..., : WIDTH // 2]).repeat(1, 2).chunk(2, -1)
    h = f.norm(x) * (1 + scale.repeat(1, 2).unsqueeze(1)) + shift.repeat(1, 2).unsqueeze(1)
    return x + f.fc2(torch.relu(f.fc1(h)))


def nested(f: Branch, x: Tensor) -> Tensor:
    """A state-space layer's `D * h`, inside the branch."""
    h = F.silu(f.fc1(f.norm(x)))
    states = torch.cumsum(h * F.softplus(f.side(h)), 1)
    return x + f.fc2(states + h * f.weight)


# ------------------------------------------------------------------------- no graph
def no_grad_inside(f: Branch, x: Tensor) -> Tensor:
    h = f.inner(x)
    with torch.no_grad():
        h = h / h.norm(dim=-1, keepdim=True)
    return x + f.fc2(h)


@torch.no_grad()
def no_grad_around(f: Branch, x: Tensor) -> Tensor:
    return x + f(x)


def reentrant(f: Branch, x: Tensor) -> Tensor:
    return checkpoint(lambda h: h + f(h), x, use_reentrant=True)


def non_reentrant(f: Branch, x: Tensor) -> Tensor:
    return checkpoint(lambda h: h + f(h), x, use_reentrant=False)
