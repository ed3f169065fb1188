"""Transformers and other sequence models: norm placements, parallel orders, sharing, memory."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.parts import Attention, Mlp

Block = Callable[[int], nn.Module]


class PreNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), Attention(width)
        self.norm2, self.mlp = nn.LayerNorm(width), Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PostNorm(PreNorm):
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.mlp(x))


class Sandwich(PreNorm):
    """A norm before and behind each branch."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.after1, self.after2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.after1(self.attn(self.norm1(x)))
        return x + self.after2(self.mlp(self.norm2(x)))


class DeepNorm(PreNorm):
    """Post-norm whose shortcut is scaled up by a constant."""

    alpha = 2.0

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x * self.alpha + self.attn(x))
        return self.norm2(self.mlp(x) + self.alpha * x)


class ReZero(PreNorm):
    """No norm; one learned factor a branch, 0 at first."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.alpha = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.alpha[0] * self.attn(x)
        return x + self.alpha[1] * self.mlp(x)


class LearnedShortcut(PreNorm):
    """Shortcut multiplied by a parameter."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.keep = nn.Parameter(torch.ones(2, width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.keep[0] * x + self.attn(self.norm1(x))
        return x * self.keep[1] + self.mlp(self.norm2(x))


class ParallelLeft(PreNorm):
    """(x + a) + m: two additions, both branches read the same x."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        return x + self.attn(h) + self.mlp(h)


class ParallelMiddle(PreNorm):
    """(a + m) + x, as GPT-J has it."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        return self.attn(h) + self.mlp(h) + x


class ParallelRight(PreNorm):
    """x + (a + m), each branch with a norm of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.attn(self.norm1(x)) + self.mlp(self.norm2(x)))


class Macaron(PreNorm):
    """Conformer: half an MLP, attention, gated convolution, half an MLP, then a norm."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.norm0, self.first = nn.LayerNorm(width), Mlp(width)
        self.norm3, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.conv = nn.Conv1d(width, 2 * width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.first(self.norm0(x))
        x = x + self.attn(self.norm1(x))
        x = x + F.glu(self.conv(self.norm3(x).transpose(1, 2)).transpose(1, 2), -1)
        x = torch.add(x, self.mlp(self.norm2(x)), alpha=0.5)
        return self.last(x)


class Fourier(PreNorm):
    """FNet: token mixing by a Fourier transform, post-norm."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + torch.fft.fft2(x).real)
        return self.norm2(x + self.mlp(x))


class Rotary(PreNorm):
    """LLaMA-like: rotary q and k (`x * cos + rotate(x) * sin` is no residual), RMSNorm, SwiGLU."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    @staticmethod
    def rotate(x: Tensor) -> Tensor:
        length, width = x.shape[-2:]
        angle = torch.arange(length)[:, None] / 10 ** torch.arange(width // 2).repeat(2)
        a, b = x.chunk(2, -1)
        return x * angle.cos() + torch.cat([-b, a], -1) * angle.sin()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        out = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        x = x + self.o(out)
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Experts(PreNorm):
    """The MLP is a sum of four experts weighted by a router: sums that are not residual."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.router = nn.Linear(width, 4)
        self.experts = nn.ModuleList(Mlp(width) for _ in range(4))

    def mixture(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            out = out + weights[..., index, None] * expert(x)
        return out + self.mlp(x)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mixture(self.norm2(x))


class Transformer(nn.Module):
    """Embedding, sinusoidal positions, blocks, head. `shared` repeats one block, like ALBERT."""

    def __init__(self, block: Block, depth: int = 4, width: int = 16, shared: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.blocks = nn.ModuleList(
            [block(width)] if shared else [block(width) for _ in range(depth)]
        )
        self.repeats = depth if shared else 1
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 32)
        position = torch.arange(64)[:, None] * torch.exp(-torch.arange(0, width, 2) / math.e)
        self.register_buffer("position", torch.cat([position.sin(), position.cos()], 1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position[: tokens.shape[1]]
        for _ in range(self.repeats):
            for block in self.blocks:
                x = block(x)
        return self.head(self.norm(x))


class SharedBias(nn.Module):
    """T5-like: a relative-position bias is computed once and added to the scores in every layer."""

    def __init__(self, depth: int = 4, width: int = 16) -> None:
        super().__init__()
        self.embed, self.table = nn.Embedding(32, width), nn.Embedding(15, 2)
        self.blocks = nn.ModuleList(PreNorm(width) for _ in range(depth))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        place = torch.arange(tokens.shape[1])
        bias = self.table((place[:, None] - place).clamp(-7, 7) + 7).permute(2, 0, 1)
        for block in self.blocks:
            x = x + block.attn(block.norm1(x), bias=bias)
            x = x + block.mlp(block.norm2(x))
        return x


class EncoderDecoder(nn.Module):
    """Two streams: 2 additions an encoder layer, 3 a decoder layer."""

    def __init__(self, depth: int = 3, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.encoder = nn.Sequential(*[PreNorm(width) for _ in range(depth)])
        self.decoder = nn.ModuleList(PreNorm(width) for _ in range(depth))
        self.cross = nn.ModuleList(Attention(width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, 32)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder(self.embed(source))
        x = self.embed(target)
        for block, cross, norm in zip(self.decoder, self.cross, self.norms, strict=True):
            x = x + block.attn(block.norm1(x))
            x = x + cross(norm(x), memory)
            x = x + block.mlp(block.norm2(x))
        return self.head(x)


class QueryDecoder(nn.Module):
    """DETR-like: positions and queries are added to q and k in every layer; post-norm."""

    def __init__(self, depth: int = 3, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 16, 16)
        self.position = nn.Parameter(torch.randn(1, 16, width) * 0.1)
        self.queries = nn.Embedding(6, width)
        self.start = nn.Linear(width, width)
        self.encoder = nn.ModuleList(PostNorm(width) for _ in range(depth))
        self.decoder = nn.ModuleList(PostNorm(width) for _ in range(depth))
        self.cross = nn.ModuleList(Attention(width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images).flatten(2).transpose(1, 2)
        for block in self.encoder:
            x = block.norm1(x + block.attn(x + self.position, x))
            x = block.norm2(x + block.mlp(x))
        memory = x
        query = self.queries.weight
        # Objects start from the image, not from zeros, so that the first sum has a data shortcut.
        x = self.start(memory.mean(1, keepdim=True)).expand(-1, 6, -1)
        for block, cross, norm in zip(self.decoder, self.cross, self.norms, strict=True):
            x = block.norm1(x + block.attn(x + query, x))
            x = norm(x + cross(x + query, memory + self.position))
            x = block.norm2(x + block.mlp(x))
        return x


class Perceiver(nn.Module):
    """Latents (a parameter) read the data by cross-attention, then talk among themselves."""

    def __init__(self, rounds: int = 2, depth: int = 2, width: int = 16) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(6, width) * 0.1)
        self.data = nn.Linear(8, width)
        self.cross = nn.ModuleList(PreNorm(width) for _ in range(rounds))
        self.blocks = nn.ModuleList(
            nn.Sequential(*[PreNorm(width) for _ in range(depth)]) for _ in range(rounds)
        )

    def forward(self, sequence: Tensor) -> Tensor:
        data = self.data(sequence)
        x = self.latents.expand(data.shape[0], -1, -1)
        for cross, blocks in zip(self.cross, self.blocks, strict=True):
            x = x + cross.attn(cross.norm1(x), data)
            x = x + cross.mlp(cross.norm2(x))
            x = blocks(x)
        return x
