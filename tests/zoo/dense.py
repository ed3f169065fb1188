"""Long skips and nets for images, audio and diffusion: additive U-Net, EDSR, WaveNet, LoRA."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.parts import Attention, conv_bn
from tests.zoo.resnets import BasicBlock
from tests.zoo.sequence import PreNorm, Transformer


class EDSR(nn.Module):
    """16 blocks without norm, their branch scaled by 0.1, under one long skip."""

    def __init__(self, depth: int = 16, width: int = 8) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, width, 3, 1, 1)
        self.first = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(depth))
        self.second = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1) for _ in range(depth))
        self.body = nn.Conv2d(width, width, 3, 1, 1)
        self.tail = nn.Sequential(nn.Conv2d(width, 12, 3, 1, 1), nn.PixelShuffle(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(x)
        long = x
        for first, second in zip(self.first, self.second, strict=True):
            x = x + second(F.relu(first(x))).mul(0.1)
        return self.tail(self.body(x) + long)


class AdditiveUNet(nn.Module):
    """Residual blocks on every level; encoder features are added to the decoder's (LinkNet)."""

    def __init__(self, widths: tuple[int, ...] = (4, 8, 16)) -> None:
        super().__init__()
        self.stem = conv_bn(3, widths[0], 3)
        self.down = nn.ModuleList(
            BasicBlock(widths[max(0, i - 1)], width, 2 if i else 1)
            for i, width in enumerate(widths)
        )
        pairs = list(zip(widths[1:], widths[:-1], strict=True))[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.refine = nn.ModuleList(BasicBlock(b, b) for _, b in pairs)
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
        skips.pop()
        for up, refine in zip(self.up, self.refine, strict=True):
            x = refine(up(x) + skips.pop())
        return self.head(x)


class TimeBlock(nn.Module):
    """Residual block of a diffusion U-Net: a time embedding is added inside (not residual)."""

    def __init__(self, c_in: int, width: int, time: int = 16) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(2, c_in), nn.Conv2d(c_in, width, 3, 1, 1)
        self.time = nn.Linear(time, width)
        self.norm2, self.conv2 = nn.GroupNorm(2, width), nn.Conv2d(width, width, 3, 1, 1)
        self.shortcut = nn.Conv2d(c_in, width, 1) if c_in != width else nn.Identity()

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(emb))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        return self.shortcut(x) + h


class SpatialAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attn = nn.GroupNorm(2, width), Attention(width)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        return x + self.attn(tokens).transpose(1, 2).view_as(x)


class DiffusionUNet(nn.Module):
    """Down, middle with attention, up with concatenated skips."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 16))
        self.stem = nn.Conv2d(3, width, 3, 1, 1)
        self.down1, self.down2 = TimeBlock(width, width), TimeBlock(width, 2 * width)
        self.middle1, self.middle2 = (TimeBlock(2 * width, 2 * width) for _ in range(2))
        self.attention = SpatialAttention(2 * width)
        self.up2, self.up1 = TimeBlock(4 * width, width), TimeBlock(2 * width, width)
        self.head = nn.Conv2d(width, 3, 3, 1, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        emb = self.embed(t[:, None])
        first = self.down1(self.stem(x), emb)
        second = self.down2(F.avg_pool2d(first, 2), emb)
        h = self.middle2(self.attention(self.middle1(second, emb)), emb)
        h = self.up2(torch.cat([h, second], 1), emb)
        h = self.up1(torch.cat([F.interpolate(h, scale_factor=2), first], 1), emb)
        return self.head(h)


class WaveNet(nn.Module):
    """Gated dilated convolutions; x + out(h) is residual, the sum of the skip outputs is not."""

    def __init__(self, depth: int = 6, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, width, 1)
        self.dilated = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 2, dilation=2 ** (i % 3)) for i in range(depth)
        )
        self.out = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(depth))
        self.skip = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(depth))
        self.head = nn.Conv1d(width, 4, 1)

    def forward(self, wave: Tensor) -> Tensor:
        x = self.stem(wave)
        skips = []
        for index, dilated in enumerate(self.dilated):
            a, b = dilated(F.pad(x, (2 ** (index % 3), 0))).chunk(2, 1)
            h = torch.tanh(a) * torch.sigmoid(b)
            skips.append(self.skip[index](h))
            x = x + self.out[index](h)
        return self.head(F.relu(torch.stack(skips).sum(0)))


class LoRALinear(nn.Module):
    """A frozen linear map with a trained low-rank one beside it: two parallel linear maps."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(x)) * 2.0


def lora_transformer(depth: int = 4) -> nn.Module:
    """All base weights frozen; adapters on the query and on the first map of the MLP."""
    model = Transformer(PreNorm, depth).requires_grad_(False)
    for block in model.blocks:
        block.attn.q = LoRALinear(block.attn.q)
        block.mlp.fc1 = LoRALinear(block.mlp.fc1)
    return model


class Auxiliary(nn.Module):
    """Every second block's input is also read by an auxiliary head."""

    def __init__(self, depth: int = 6, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.branches = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(depth)
        )
        self.aux = nn.ModuleList(nn.Linear(width, 4) for _ in range(depth // 2))
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        outs = []
        for index, (norm, branch) in enumerate(zip(self.norms, self.branches, strict=True)):
            if index % 2:
                outs.append(self.aux[index // 2](x))
            x = x + branch(norm(x))
        return [*outs, self.head(x)]


class Coupling(nn.Module):
    """Reversible blocks: y1 = x1 + F(x2), y2 = x2 + G(y1)."""

    def __init__(self, depth: int = 3, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Linear(8, width)
        half = width // 2
        self.f = nn.ModuleList(
            nn.Sequential(nn.Linear(half, half), nn.GELU()) for _ in range(depth)
        )
        self.g = nn.ModuleList(
            nn.Sequential(nn.Linear(half, half), nn.GELU()) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.stem(x).chunk(2, -1)
        for f, g in zip(self.f, self.g, strict=True):
            a = a + f(b)
            b = b + g(a)
        return torch.cat([a, b], -1)
