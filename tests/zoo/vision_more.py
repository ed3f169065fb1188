"""Hiera, Mixer, PoolFormer, CaiT, DiT: pyramids by pooling, mixers, modulation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.parts import Attention, Classifier, LayerScale, Mlp


class PooledBlock(nn.Module):
    """Hiera's block: where the stage changes, shortcut and queries are max-pooled."""

    def __init__(self, c_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.norm1, self.norm2 = nn.LayerNorm(c_in), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(c_in, 3 * width), nn.Linear(width, width)
        self.proj = nn.Linear(c_in, width) if c_in != width else None
        self.mlp = Mlp(width)

    def pool(self, x: Tensor) -> Tensor:
        """Tokens lie in mask-unit order: `stride` of them are one cell of the next stage."""
        return x.unflatten(1, (self.stride, -1)).amax(1) if self.stride > 1 else x

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(self.pool(q), k, v))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        if self.proj is not None:
            x = self.pool(self.proj(normed))
        x = x + self.attention(normed)
        return x + self.mlp(self.norm2(x))


class Hiera(nn.Module):
    """Hiera-T for (1, 2, 7, 2)."""

    def __init__(self, depths: tuple[int, ...] = (1, 2, 7, 2), width: int = 4) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.position = nn.Parameter(torch.zeros(1, 64, width))
        body: list[nn.Module] = []
        c_in = width
        for stage, depth in enumerate(depths):
            for position in range(depth):
                down = bool(stage) and not position
                body.append(PooledBlock(c_in, width * 2**stage, 4 if down else 1))
                c_in = width * 2**stage
        self.body, self.head = nn.Sequential(*body), nn.Linear(c_in, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2) + self.position
        return self.head(self.body(x).mean(1))


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.tokens = nn.LayerNorm(width), Mlp(tokens)
        self.norm2, self.channels = nn.LayerNorm(width), Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """MLP-Mixer with 8 blocks (S/16)."""

    def __init__(self, depth: int = 8, width: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.Sequential(*[MixerBlock(16, width) for _ in range(depth)])
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.patch(images).flatten(2).transpose(1, 2)).mean(1))


class ChannelScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((width, 1, 1), 1e-5))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


class PoolBlock(nn.Module):
    """Token mixing by average pooling less the input itself (a difference, nothing learned)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(1, width), nn.GroupNorm(1, width)
        self.pool = nn.AvgPool2d(3, 1, 1, count_include_pad=False)
        self.mlp = nn.Sequential(
            nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, width, 1)
        )
        self.scale1, self.scale2 = ChannelScale(width), ChannelScale(width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.scale1(self.pool(h) - h)
        return x + self.scale2(self.mlp(self.norm2(x)))


def poolformer(depths: tuple[int, ...] = (2, 2, 6, 2)) -> nn.Module:
    """PoolFormer-S12."""
    body: list[nn.Module] = [nn.Conv2d(3, 4, 4, 4)]
    width = 4
    for stage, depth in enumerate(depths):
        if stage:
            body.append(nn.Conv2d(width, 2 * width, 3, 2, 1))
            width *= 2
        body += [PoolBlock(width) for _ in range(depth)]
    return Classifier(nn.Sequential(*body), width)


class ClassAttentionBlock(nn.Module):
    """CaiT's late block: only the class token is updated, patches are read."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attn, self.scale1 = (
            nn.LayerNorm(width),
            Attention(width),
            LayerScale(width),
        )
        self.norm2, self.mlp, self.scale2 = nn.LayerNorm(width), Mlp(width), LayerScale(width)

    def forward(self, token: Tensor, patches: Tensor) -> Tensor:
        both = self.norm1(torch.cat([token, patches], 1))
        token = token + self.scale1(self.attn(both[:, :1], both))
        return token + self.scale2(self.mlp(self.norm2(token)))


class ClassAttention(nn.Module):
    """Class token from the mean of the patches, then two class-attention blocks."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.start = nn.Linear(width, width)
        self.blocks = nn.ModuleList(ClassAttentionBlock(width) for _ in range(2))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch(images).flatten(2).transpose(1, 2)
        token = self.start(patches.mean(1, keepdim=True))
        for block in self.blocks:
            token = block(token, patches)
        return token[:, 0]


class DiTBlock(nn.Module):
    """adaLN-zero: scale, shift and gate come from the condition; the last map starts at 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.attn, self.mlp = Attention(width), Mlp(width)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        nn.init.zeros_(self.modulation[1].weight)
        nn.init.zeros_(self.modulation[1].bias)

    @staticmethod
    def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(condition).chunk(6, 1)
        x = x + gate1.unsqueeze(1) * self.attn(self.modulate(self.norm1(x), shift1, scale1))
        return x + gate2.unsqueeze(1) * self.mlp(self.modulate(self.norm2(x), shift2, scale2))


class DiT(nn.Module):
    """Diffusion transformer: condition = time embedding + class embedding, not residual."""

    def __init__(self, depth: int = 12, width: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(4, width, 2, 2)
        self.register_buffer("position", torch.randn(1, 16, width))
        self.time = nn.Sequential(nn.Linear(8, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(10, width)
        self.blocks = nn.ModuleList(DiTBlock(width) for _ in range(depth))
        self.last = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.head = nn.Linear(width, 16)

    def forward(self, latents: Tensor, t: Tensor, labels: Tensor) -> Tensor:
        x = self.patch(latents).flatten(2).transpose(1, 2) + self.position
        angles = t[:, None] * torch.arange(1, 5, device=t.device)
        condition = self.time(torch.cat([angles.sin(), angles.cos()], 1)) + self.label(labels)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.last(condition).chunk(2, 1)
        return self.head(DiTBlock.modulate(self.norm(x), shift, scale))
