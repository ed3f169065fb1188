"""The nets that are measured, and one training step of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW, Optimizer


class Attention(nn.Module):
    """Causal self-attention through one fused kernel."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        split = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


class Block(nn.Module):
    """A pre-norm transformer block: two residual additions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A small GPT with an untied head."""

    def __init__(self, depth: int, width: int, heads: int, vocabulary: int, tokens: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.02 * torch.randn(tokens, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position[: tokens.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


class MLPBlock(nn.Module):
    """A pre-norm residual block of two linear maps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.gelu(self.first(self.norm(x))))


def residual_mlp(depth: int, width: int = 16) -> nn.Sequential:
    """A residual MLP, deep and thin."""
    blocks = (MLPBlock(width) for _ in range(depth))
    return nn.Sequential(nn.Linear(8, width), *blocks, nn.Linear(width, 4))


@dataclass(frozen=True)
class Training:
    """A model with all that one step needs; `step()` is the plain step."""

    model: nn.Module
    optimizer: Optimizer
    inputs: Tensor
    loss: Callable[[Tensor], Tensor]

    def step(self) -> None:
        """Forward, backward, optimizer."""
        self.loss(self.model(self.inputs)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def size(self) -> int:
        """Number of trained values."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def gpt_training(depth: int = 8, width: int = 256, batch: int = 8, tokens: int = 128) -> Training:
    """The GPT that the aims are stated for, with AdamW, learning to repeat its input."""
    torch.manual_seed(0)
    vocabulary = 512
    model = GPT(depth, width, heads=max(1, width // 32), vocabulary=vocabulary, tokens=tokens)
    inputs = torch.randint(vocabulary, (batch, tokens))
    return Training(
        model,
        AdamW(model.parameters(), lr=3e-4),
        inputs,
        lambda logits: F.cross_entropy(logits.flatten(0, 1), inputs.flatten()),
    )


def mlp_training(depth: int, batch: int = 16) -> Training:
    """A residual MLP with AdamW."""
    torch.manual_seed(0)
    model = residual_mlp(depth)
    inputs = torch.randn(batch, 8)
    return Training(
        model, AdamW(model.parameters(), lr=1e-4), inputs, lambda out: out.square().mean()
    )
