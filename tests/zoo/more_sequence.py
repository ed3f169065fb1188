"""Sequence nets: retention, state spaces, recurrences with gates, routing, memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.parts import Attention, Mlp
from tests.zoo.sequence import PreNorm, Transformer


class Retention(nn.Module):
    """RetNet: decayed linear attention, group norm, a gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.gate = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.out = nn.GroupNorm(2, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        place = torch.arange(x.shape[1])
        decay = 0.9 ** (place[:, None] - place).clamp(min=0) * (place[:, None] >= place)
        y = (q @ k.transpose(1, 2) * decay) @ v
        y = self.norm(y.flatten(0, 1)).view_as(y)
        return self.out(F.silu(self.gate(x)) * y)


class RetNet(PreNorm):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.attn = Retention(width)


class Rwkv(nn.Module):
    """Token shift by learned mixing, time mixing as a recurrence, channel mixing with a gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Parameter(torch.rand(5, width))
        self.decay, self.bonus = (nn.Parameter(torch.rand(width)) for _ in range(2))
        self.r, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.ck, self.cr = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.cv = nn.Linear(2 * width, width)

    def shifted(self, x: Tensor, index: int) -> Tensor:
        before = F.pad(x, (0, 0, 1, -1))
        return x * self.mix[index] + before * (1 - self.mix[index])

    def time(self, x: Tensor) -> Tensor:
        r, k, v = (m(self.shifted(x, i)) for i, m in enumerate((self.r, self.k, self.v)))
        a = b = torch.zeros_like(k[:, 0])
        outs = []
        for t in range(k.shape[1]):
            e = torch.exp(self.bonus + k[:, t])
            outs.append((a + e * v[:, t]) / (b + e))
            w, e = torch.exp(-self.decay), torch.exp(k[:, t])
            a, b = w * a + e * v[:, t], w * b + e
        return self.o(torch.sigmoid(r) * torch.stack(outs, 1))

    def channel(self, x: Tensor) -> Tensor:
        k = torch.relu(self.ck(self.shifted(x, 3))) ** 2
        return torch.sigmoid(self.cr(self.shifted(x, 4))) * self.cv(k)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.time(self.norm1(x))
        return x + self.channel(self.norm2(x))


class S4(nn.Module):
    """A long convolution by FFT with the skip `D * u`, then a gated linear unit; post-norm."""

    def __init__(self, width: int, length: int = 64) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(width, length) * 0.1)
        self.d = nn.Parameter(torch.randn(width))
        self.out, self.norm = nn.Conv1d(width, 2 * width, 1), nn.LayerNorm(width)

    def ssm(self, u: Tensor) -> Tensor:
        n = 2 * u.shape[-1]
        k = torch.fft.rfft(self.kernel[:, : u.shape[-1]], n=n)
        y = torch.fft.irfft(torch.fft.rfft(u, n=n) * k, n=n)[..., : u.shape[-1]]
        return y + u * self.d[:, None]

    def forward(self, x: Tensor) -> Tensor:
        y = F.glu(self.out(F.gelu(self.ssm(x.transpose(1, 2)))), 1)
        return self.norm(x + y.transpose(1, 2))


class Hyena(nn.Module):
    """Order 2: projections with short convolutions, gated long convolutions with a bias skip."""

    def __init__(self, width: int, length: int = 64) -> None:
        super().__init__()
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(width), nn.LayerNorm(width), Mlp(width)
        self.inner = nn.Linear(width, 3 * width)
        self.short = nn.Conv1d(3 * width, 3 * width, 3, padding=2, groups=3 * width)
        self.kernel = nn.Parameter(torch.randn(width, length) * 0.1)
        self.bias, self.out = nn.Parameter(torch.randn(width)), nn.Linear(width, width)

    def filter(self, u: Tensor) -> Tensor:
        n = 2 * u.shape[-1]
        k = torch.fft.rfft(self.kernel[:, : u.shape[-1]], n=n) / n
        y = torch.fft.irfft(torch.fft.rfft(u, n=n) * k, n=n, norm="forward")[..., : u.shape[-1]]
        return y + u * self.bias.unsqueeze(-1)

    def mixer(self, x: Tensor) -> Tensor:
        h = self.short(self.inner(x).transpose(1, 2))[..., : x.shape[1]]
        x1, x2, v = h.chunk(3, 1)
        return self.out((self.filter(v * x1) * x2).transpose(1, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Mamba2(nn.Module):
    """State-space duality in its recurrent form, `D * x`, a gated norm."""

    def __init__(self, width: int, state: int = 4) -> None:
        super().__init__()
        self.state, inner = state, 2 * width
        self.norm, self.gated = nn.LayerNorm(width), nn.RMSNorm(inner)
        self.inner = nn.Linear(width, 2 * inner + 2 * state + 1)
        self.conv = nn.Conv1d(inner + 2 * state, inner + 2 * state, 3, padding=2)
        self.a, self.d = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(inner))
        self.out = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        residual, n = x, self.state
        z, xbc, dt = self.inner(self.norm(x)).split([self.d.numel(), self.d.numel() + 2 * n, 1], -1)
        xbc = F.silu(self.conv(xbc.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        u, b, c = xbc.split([self.d.numel(), n, n], -1)
        dt = F.softplus(dt)
        h = torch.zeros(x.shape[0], self.d.numel(), n)
        ys = []
        for t in range(x.shape[1]):
            decay = torch.exp(-dt[:, t] * torch.exp(self.a))[..., None]
            h = h * decay + dt[:, t, :, None] * u[:, t, :, None] * b[:, t, None, :]
            ys.append(torch.einsum("bdn,bn->bd", h, c[:, t]))
        y = torch.stack(ys, 1) + self.d * u
        return residual + self.out(self.gated(y * F.silu(z)))


class Griffin(nn.Module):
    """A real-gated linear recurrence beside a gate, and a gated MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)
        self.conv = nn.Conv1d(width, width, 4, padding=3, groups=width)
        self.r, self.i = nn.Linear(width, width), nn.Linear(width, width)
        self.decay, self.out = nn.Parameter(torch.rand(width)), nn.Linear(width, width)
        self.up, self.gate = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def recurrence(self, x: Tensor) -> Tensor:
        a = torch.exp(-8 * F.softplus(self.decay) * torch.sigmoid(self.r(x)))
        u = torch.sqrt(1 - a**2) * (torch.sigmoid(self.i(x)) * x)
        h, outs = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = a[:, t] * h + u[:, t]
            outs.append(h)
        return torch.stack(outs, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        u = self.conv(self.right(h).transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        x = x + self.out(F.gelu(self.left(h)) * self.recurrence(u))
        h = self.norm2(x)
        return x + self.down(F.gelu(self.gate(h)) * self.up(h))


class Universal(nn.Module):
    """One shared block, a time signal in each round, and halting: a gated running average."""

    def __init__(self, rounds: int = 4, width: int = 16) -> None:
        super().__init__()
        self.rounds = rounds
        self.embed, self.block = nn.Embedding(32, width), PreNorm(width)
        self.halt = nn.Linear(width, 1)
        self.register_buffer("signal", torch.randn(rounds, 1, 1, width))

    def forward(self, tokens: Tensor) -> Tensor:
        state = self.embed(tokens)
        total = torch.zeros_like(state)
        for k in range(self.rounds):
            state = state + self.signal[k]
            p = torch.sigmoid(self.halt(state))
            state = self.block(state)
            total = state * p + total * (1 - p)
        return total


class MixtureOfDepths(nn.Module):
    """Only half of the tokens pass the branch; its weighted result is scattered back."""

    def __init__(self, depth: int = 3, width: int = 16, how: str = "scatter_add") -> None:
        super().__init__()
        self.embed, self.how = nn.Embedding(32, width), how
        self.routers = nn.ModuleList(nn.Linear(width, 1) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.mlps = nn.ModuleList(Mlp(width) for _ in range(depth))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for router, norm, mlp in zip(self.routers, self.norms, self.mlps, strict=True):
            weight, chosen = router(x).squeeze(-1).topk(tokens.shape[1] // 2)
            index = chosen[..., None].expand(-1, -1, x.shape[-1])
            update = mlp(norm(x.gather(1, index))) * weight[..., None]
            if self.how == "scatter_add":
                x = x.scatter_add(1, index, update)
            elif self.how == "index_add":
                flat = (chosen + torch.arange(len(x))[:, None] * x.shape[1]).flatten()
                x = x.flatten(0, 1).index_add(0, flat, update.flatten(0, 1)).view_as(x)
            else:
                x = x + torch.zeros_like(x).scatter(1, index, update)
        return x


class TransformerXL(nn.Module):
    """Two segments; the first one's states are the second one's memory, without gradient."""

    def __init__(self, depth: int = 3, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.attn = nn.ModuleList(Attention(width) for _ in range(depth))
        self.mlp = nn.ModuleList(Mlp(width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))

    def forward(self, tokens: Tensor) -> Tensor:
        memory: list[Tensor] = []
        for segment in tokens.chunk(2, 1):
            x, states = self.embed(segment), []
            for k, (attn, mlp) in enumerate(zip(self.attn, self.mlp, strict=True)):
                states.append(x.detach())
                context = torch.cat([memory[k], x], 1) if memory else x
                x = self.norms[2 * k](x + attn(x, context))
                x = self.norms[2 * k + 1](x + mlp(x))
            memory = states
        return x


class RealFormer(nn.Module):
    """Residual attention: each layer's scores are added to those of the layer before."""

    def __init__(self, depth: int = 3, width: int = 16, parallel: bool = False) -> None:
        super().__init__()
        self.parallel = parallel
        self.embed = nn.Embedding(32, width)
        self.blocks = nn.ModuleList(PreNorm(width) for _ in range(depth))

    def forward(self, tokens: Tensor) -> Tensor:
        x, before = self.embed(tokens), None
        for block in self.blocks:
            attn, h = block.attn, block.norm1(x)
            k, v = attn.kv(h).chunk(2, -1)
            scores = attn.q(h) @ k.transpose(1, 2) / 4
            scores = scores if before is None else before + scores
            before, a = scores, attn.out(scores.softmax(-1) @ v)
            if self.parallel:
                x = x + (a + block.mlp(h))
            else:
                x = x + a
                x = x + block.mlp(block.norm2(x))
        return x


class ValueResidual(nn.Module):
    """ResFormer: the first layer's values are mixed into the later ones."""

    def __init__(self, depth: int = 3, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.blocks = nn.ModuleList(PreNorm(width) for _ in range(depth))
        self.keep = nn.Parameter(torch.full((depth, 2), 0.5))

    def forward(self, tokens: Tensor) -> Tensor:
        x, first = self.embed(tokens), None
        for keep, block in zip(self.keep, self.blocks, strict=True):
            attn, h = block.attn, block.norm1(x)
            k, v = attn.kv(h).chunk(2, -1)
            first = v if first is None else first
            v = v if first is v else keep[0] * first + keep[1] * v
            x = x + attn.out(F.scaled_dot_product_attention(attn.q(h), k, v))
            x = x + block.mlp(block.norm2(x))
        return x


class MeanPooled(nn.Module):
    """A sentence encoder used twice in one forward."""

    def __init__(self, block: type[nn.Module] = PreNorm) -> None:
        super().__init__()
        self.encoder = Transformer(block, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.encoder(left).mean(1) @ self.encoder(right).mean(1).T
