"""Sets, graphs, sound and generators."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.parts import Attention, Mlp
from tests.zoo.sequence import PreNorm


class MAB(nn.Module):
    """Set Transformer: h = q + attention(q, kv), then h + relu(fc(h)); q is projected before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(y), self.v(y)
        h = q + torch.softmax(q @ k.transpose(1, 2) / 4, -1) @ v
        return h + F.relu(self.o(h))


class SetTransformer(nn.Module):
    """An induced block (its inducing points are parameters), a plain block, a pooling block."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.points = nn.Parameter(torch.randn(1, 4, width))
        self.seed = nn.Parameter(torch.randn(1, 1, width))
        self.mabs = nn.ModuleList(MAB(width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        h = self.mabs[0](self.points.expand(len(x), -1, -1), x)
        x = self.mabs[1](x, h)
        x = self.mabs[2](x, x)
        return self.mabs[3](self.seed.expand(len(x), -1, -1), x)


class PerceiverIO(nn.Module):
    """Latents read the input, talk among themselves, and are read by output queries."""

    def __init__(self, depth: int = 3, width: int = 16) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(5, width))
        self.queries = nn.Parameter(torch.randn(4, width))
        self.data = nn.Linear(8, width)
        self.read, self.answer = PreNorm(width), PreNorm(width)
        self.body = nn.Sequential(*[PreNorm(width) for _ in range(depth)])

    @staticmethod
    def cross(block: nn.Module, x: Tensor, context: Tensor) -> Tensor:
        x = x + block.attn(block.norm1(x), context)
        return x + block.mlp(block.norm2(x))

    def forward(self, x: Tensor) -> Tensor:
        data = self.data(x)
        latents = self.cross(self.read, self.latents.expand(len(x), -1, -1), data)
        return self.cross(self.answer, self.queries.expand(len(x), -1, -1), self.body(latents))


EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 5]])


class GAT(nn.Module):
    """Attention over edges, residual, with one head; gather, exp and index_add."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc, self.score, self.norm = (
            nn.Linear(width, width),
            nn.Linear(2 * width, 1),
            nn.LayerNorm(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        a, b = EDGES
        h = self.fc(x)
        e = F.leaky_relu(self.score(torch.cat([h[a], h[b]], -1)), 0.2).exp()
        total = torch.zeros(len(x), 1).index_add(0, b, e)
        out = torch.zeros_like(h).index_add(0, b, e * h[a]) / (total[b].mean() + 1e-6)
        return self.norm(x + F.elu(out))


class GPS(nn.Module):
    """GraphGPS: message passing and attention side by side, each residual; their sum; an MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message, self.attn, self.mlp = nn.Linear(width, width), Attention(width), Mlp(width)
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        a, b = EDGES
        messages = torch.zeros_like(x).index_add(0, b, F.relu(self.message(x))[a])
        local = self.norms[0](x + F.dropout(messages, 0.1, self.training))
        everywhere = self.norms[1](x + self.attn(x[None])[0])
        h = local + everywhere
        return self.norms[2](h + self.mlp(h))


class GIN(nn.Module):
    """x + mlp((1 + eps) * x + sum over neighbours), the sum by a constant adjacency matrix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.eps, self.mlp = nn.Parameter(torch.zeros(1)), Mlp(width)
        links = torch.zeros(6, 6)
        links[EDGES[1], EDGES[0]] = 1.0
        self.register_buffer("adjacency", links)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp((1 + self.eps) * x + self.adjacency @ x)


def graph_net(block: type[nn.Module], depth: int = 3, width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), *[block(width) for _ in range(depth)])


class PointResidual(nn.Module):
    """PointMLP: residual pointwise convolutions, a maximum over neighbours, again residual."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv1d(3, width, 1)
        self.before, self.after = (
            nn.ModuleList(
                nn.Sequential(nn.Conv1d(width, width, 1), nn.BatchNorm1d(width), nn.ReLU())
                for _ in range(2)
            )
            for _ in range(2)
        )

    def forward(self, points: Tensor) -> Tensor:
        h = self.stem(points)
        for block in self.before:
            h = F.relu(h + block(h))
        h = h.unfold(-1, 4, 4).amax(-1)
        for block in self.after:
            h = F.relu(block(h) + h)
        return h.amax(-1)


class ConditionedWaveNet(nn.Module):
    """Gated convolutions with a condition added to the filter's input; only x + out(h) counts."""

    def __init__(self, depth: int = 4, width: int = 8) -> None:
        super().__init__()
        self.width = width
        self.stem, self.condition = nn.Conv1d(1, width, 1), nn.Conv1d(3, 2 * width * depth, 1)
        self.dilated = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 3, padding=2**i, dilation=2**i) for i in range(depth)
        )
        self.out = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(depth))

    def forward(self, wave: Tensor, mel: Tensor) -> Tensor:
        x, conditions = self.stem(wave), self.condition(mel).split(2 * self.width, 1)
        for dilated, out, condition in zip(self.dilated, self.out, conditions, strict=True):
            a, b = (dilated(x) + condition).chunk(2, 1)
            x = (x + out(torch.tanh(a) * torch.sigmoid(b))) * 0.5**0.5
        return x


class Demucs(nn.Module):
    """Encoder outputs are added to the decoder's inputs; an LSTM in the middle."""

    def __init__(self, widths: tuple[int, ...] = (4, 8)) -> None:
        super().__init__()
        pairs = list(zip((1, *widths), widths, strict=False))
        self.encoder = nn.ModuleList(nn.Conv1d(a, b, 4, 2, 1) for a, b in pairs)
        self.decoder = nn.ModuleList(nn.ConvTranspose1d(b, a, 4, 2, 1) for a, b in pairs[::-1])
        self.lstm = nn.LSTM(widths[-1], widths[-1], batch_first=True)

    def forward(self, wave: Tensor) -> Tensor:
        x, skips = wave, []
        for layer in self.encoder:
            x = F.relu(layer(x))
            skips.append(x)
        x = self.lstm(x.transpose(1, 2))[0].transpose(1, 2)
        for index, layer in enumerate(self.decoder):
            x = layer(x + skips.pop())
            x = F.relu(x) if index + 1 < len(self.decoder) else x
        return x


class MaskNet(nn.Module):
    """Speech enhancement by a mask: a product with the input, blocks inside the mask net."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inner = nn.Linear(6, width)
        self.blocks = nn.Sequential(*[PreNorm(width) for _ in range(2)])
        self.mask = nn.Linear(width, 6)

    def forward(self, spectrum: Tensor) -> Tensor:
        return spectrum * torch.sigmoid(self.mask(self.blocks(self.inner(spectrum))))


class Upsampler(nn.Module):
    """BigGAN's generator block: both ways upsample; 1x1 convolution on the shortcut."""

    def __init__(self, c_in: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(c_in), nn.BatchNorm2d(width)
        self.conv1, self.conv2 = nn.Conv2d(c_in, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.shortcut = nn.Conv2d(c_in, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.interpolate(F.relu(self.norm1(x)), scale_factor=2)
        h = self.conv2(F.relu(self.norm2(self.conv1(h))))
        return h + self.shortcut(F.interpolate(x, scale_factor=2))


class Bicubic(nn.Module):
    """Super-resolution: the upsampled image plus what a net makes of the image."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, 12, 3, 1, 1)
        )

    def forward(self, image: Tensor) -> Tensor:
        up = F.interpolate(image, scale_factor=2, mode="bicubic", align_corners=False)
        return up + F.pixel_shuffle(self.net(image), 2)


class DnCNN(nn.Module):
    """The net estimates the noise: image - net(image)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, 3, 3, 1, 1)
        )

    def forward(self, image: Tensor) -> Tensor:
        return image - self.net(image)


class MMDiT(nn.Module):
    """Text and image streams with one joint attention; adaptive norms with gates."""

    def __init__(self, depth: int = 2, width: int = 16) -> None:
        super().__init__()
        self.text, self.image = nn.Linear(8, width), nn.Linear(4, width)
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.mod = nn.ModuleList(nn.Linear(width, 12 * width) for _ in range(depth))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2 * depth))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2 * depth))
        self.mlp = nn.ModuleList(Mlp(width) for _ in range(2 * depth))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)

    def forward(self, text: Tensor, image: Tensor, t: Tensor) -> Tensor:
        streams, emb = [self.text(text), self.image(image)], self.time(t[:, None])
        for k, mod in enumerate(self.mod):
            parts = mod(F.silu(emb))[:, None].chunk(12, -1)
            parts = parts[:6], parts[6:]
            qkv = [
                self.qkv[2 * k + i](self.norm(x) * (1 + parts[i][1]) + parts[i][0])
                for i, x in enumerate(streams)
            ]
            q, key, v = torch.cat(qkv, 1).chunk(3, -1)
            joint = F.scaled_dot_product_attention(q, key, v).split(
                [text.shape[1], image.shape[1]], 1
            )
            for i, x in enumerate(streams):
                x = x + parts[i][2] * self.out[2 * k + i](joint[i])
                h = self.norm(x) * (1 + parts[i][4]) + parts[i][3]
                streams[i] = x + parts[i][5] * self.mlp[2 * k + i](h)
        return streams[1]


class ControlNet(nn.Module):
    """A frozen U-Net whose skips get the zero convolutions of a trained copy added."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem, self.hint = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(3, width, 3, 1, 1)
        self.base = nn.ModuleList(ResBlock(width) for _ in range(2))
        self.copy = nn.ModuleList(ResBlock(width) for _ in range(2))
        self.zero = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(2))
        self.up = nn.ModuleList(nn.Conv2d(2 * width, width, 3, 1, 1) for _ in range(2))

    def forward(self, x: Tensor, hint: Tensor) -> Tensor:
        h = self.stem(x)
        c = h + self.hint(hint)
        skips = []
        for base, copy, zero in zip(self.base, self.copy, self.zero, strict=True):
            h, c = base(h), copy(c)
            skips.append(h + zero(c))
        for up in self.up:
            h = F.relu(up(torch.cat([h, skips.pop()], 1)))
        return h


class ResBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(2, width), nn.Conv2d(width, width, 3, 1, 1)
        self.norm2, self.conv2 = nn.GroupNorm(2, width), nn.Conv2d(width, width, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.silu(self.norm2(self.conv1(F.silu(self.norm1(x))))))


class Autoencoder(nn.Module):
    """A VAE with blocks and an attention in the middle; `mu + std * noise` is not residual."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(width, width, 3, 2, 1)
        self.inner = nn.ModuleList(ResBlock(width) for _ in range(4))
        self.norm, self.attn = nn.GroupNorm(2, width), Attention(width)
        self.moments, self.decode = nn.Conv2d(width, 8, 1), nn.Conv2d(4, width, 1)
        self.head = nn.Conv2d(width, 3, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner[1](self.down(self.inner[0](self.stem(x))))
        h = h + self.attn(self.norm(h).flatten(2).transpose(1, 2)).transpose(1, 2).view_as(h)
        mu, logvar = self.moments(h).chunk(2, 1)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        h = self.inner[3](F.interpolate(self.inner[2](self.decode(z)), scale_factor=2))
        return self.head(h)
