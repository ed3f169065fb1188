"""Nets whose residual arithmetic is unusual: learned scales, differences, steps, memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.parts import Attention, Mlp, conv_bn


class FixupBlock(nn.Module):
    """No norm; scalar biases around convolutions, a scalar scale; pooling and zeros project."""

    def __init__(self, c_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bias = nn.Parameter(torch.zeros(4, 1))
        self.scale = nn.Parameter(torch.ones(1))
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = F.relu(self.conv1(x + self.bias[0]) + self.bias[1])
        out = self.conv2(out + self.bias[2]) * self.scale + self.bias[3]
        if self.stride > 1:
            identity = F.avg_pool2d(x + self.bias[0], 1, self.stride)
            identity = torch.cat((identity, torch.zeros_like(identity)), 1)
        out += identity
        return F.relu(out)


def fixup_resnet() -> nn.Module:
    body = [FixupBlock(8, 8, 1), FixupBlock(8, 8, 1), FixupBlock(8, 16, 2), FixupBlock(16, 16, 1)]
    return nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.ReLU(), *body)


class SkipInit(nn.Module):
    """x + alpha * f(x), alpha a learned scalar that starts at 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(()))
        self.conv1, self.conv2 = conv_bn(width, width, 3), conv_bn(width, width, 3, act=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.alpha * self.conv2(self.conv1(x))


class Admin(nn.Module):
    """Post-norm with a learned vector on the shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.omega = nn.Parameter(torch.ones(2, width))
        self.norm1, self.attn = nn.LayerNorm(width), Attention(width)
        self.norm2, self.mlp = nn.LayerNorm(width), Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x * self.omega[0] + self.attn(x))
        return self.norm2(x * self.omega[1] + self.mlp(x))


class NormFormer(nn.Module):
    """Pre-norm with a norm behind attention and one inside the MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.inner = nn.LayerNorm(2 * width)
        self.attn = Attention(width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.norms[1](self.attn(self.norms[0](x)))
        return x + self.fc2(self.inner(F.gelu(self.fc1(self.norms[2](x)))))


class NBeats(nn.Module):
    """Doubly residual: the backcast is subtracted, the forecasts are summed."""

    def __init__(self, depth: int = 4, past: int = 12, future: int = 3) -> None:
        super().__init__()
        self.fc = nn.ModuleList(
            nn.Sequential(nn.Linear(past, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
            for _ in range(depth)
        )
        self.back = nn.ModuleList(nn.Linear(16, past) for _ in range(depth))
        self.fore = nn.ModuleList(nn.Linear(16, future) for _ in range(depth))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        forecast = torch.zeros(x.shape[0], 3)
        for fc, back, fore in zip(self.fc, self.back, self.fore, strict=True):
            h = fc(x)
            x = x - back(h)
            forecast = forecast + fore(h)
        return x, forecast


class Euler(nn.Module):
    """A neural ODE by Euler steps: one shared field, x + h * f(x, t)."""

    def __init__(self, steps: int = 5, width: int = 8) -> None:
        super().__init__()
        self.steps = steps
        self.stem = nn.Linear(8, width)
        self.field = nn.Sequential(nn.Linear(width + 1, 16), nn.Tanh(), nn.Linear(16, width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for k in range(self.steps):
            t = torch.full_like(x[..., :1], k / self.steps)
            x = x + self.field(torch.cat([x, t], -1)) / self.steps
        return x


class Highway(nn.Module):
    """t * h(x) + (1 - t) * x, and a coupled variant x + t * (h - x)."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.h, self.t = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        t = torch.sigmoid(self.t(x))
        return t * torch.relu(self.h(x)) + (1 - t) * x


class Refinement(nn.Module):
    """RAFT-like: the estimate is detached, then corrected by a recurrent unit, several times."""

    def __init__(self, rounds: int = 4, width: int = 8) -> None:
        super().__init__()
        self.rounds = rounds
        self.encoder = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.ReLU())
        self.first = nn.Conv2d(width, 2, 3, 1, 1)
        self.update = nn.Conv2d(2 * width + 2, width, 3, 1, 1)
        self.delta = nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, 2, 3, 1, 1)
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        features = self.encoder(images)
        flow = self.first(features)
        state = torch.tanh(features)
        outs = []
        for _ in range(self.rounds):
            flow = flow.detach()
            state = torch.tanh(self.update(torch.cat([state, features, flow], 1)))
            flow = flow + self.delta(state)
            outs.append(flow)
        return outs


class Recurrent(nn.Module):
    """GNMT: stacked LSTMs, residual from the second on."""

    def __init__(self, depth: int = 4, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            out, _ = layer(x)
            x = out + x if index else out
        return x


class Adapter(nn.Module):
    """Houlsby: a bottleneck with its own residual behind each sub-layer; the base is frozen."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), Attention(width)
        self.norm2, self.mlp = nn.LayerNorm(width), Mlp(width)
        self.requires_grad_(False)
        self.down = nn.ModuleList(nn.Linear(width, 4) for _ in range(2))
        self.up = nn.ModuleList(nn.Linear(4, width) for _ in range(2))

    def adapt(self, index: int, x: Tensor) -> Tensor:
        return x + self.up[index](F.gelu(self.down[index](x)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.adapt(0, self.attn(x)))
        return self.norm2(x + self.adapt(1, self.mlp(x)))


class IA3(nn.Module):
    """Learned vectors multiply keys, values and the inner activation: no additions of their own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.requires_grad_(False)
        self.lk, self.lv = (nn.Parameter(torch.ones(width)) for _ in range(2))
        self.lf = nn.Parameter(torch.ones(2 * width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        a = F.scaled_dot_product_attention(self.q(h), self.k(h) * self.lk, self.v(h) * self.lv)
        x = x + self.o(a)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))) * self.lf)


class FakeQuantised(nn.Module):
    """Quantisation-aware: the sum's operands pass a straight-through rounding."""

    def __init__(self, width: int = 8, kernel: bool = False) -> None:
        super().__init__()
        self.fc1, self.fc2, self.kernel = nn.Linear(width, width), nn.Linear(width, width), kernel

    def quantise(self, x: Tensor) -> Tensor:
        if self.kernel:
            return torch.fake_quantize_per_tensor_affine(x, 0.05, 0, -128, 127)
        return x + ((x / 0.05).round() * 0.05 - x).detach()

    def forward(self, x: Tensor) -> Tensor:
        return self.quantise(x) + self.quantise(self.fc2(F.relu(self.fc1(x))))


class VectorQuantised(nn.Module):
    """VQ-VAE: `z + (q - z).detach()` passes the gradient on; nothing is learned on the way."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(8, width), nn.Linear(width, 8)
        self.codes = nn.Embedding(16, width)

    def forward(self, x: Tensor) -> Tensor:
        z = self.encode(x)
        q = self.codes(torch.cdist(z.detach(), self.codes.weight).argmin(-1))
        return self.decode(z + (q - z).detach())


class AffineCoupling(nn.Module):
    """RealNVP: half the channels are scaled and shifted by a map of the other half."""

    def __init__(self, depth: int = 3, width: int = 8) -> None:
        super().__init__()
        self.nets = nn.ModuleList(Mlp(width // 2, 2, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for net in self.nets:
            a, b = x.chunk(2, -1)
            log_s, t = net(a).chunk(2, -1)
            x = torch.cat([b * torch.tanh(log_s).exp() + t, a], -1)
        return x


class HyperConnections(nn.Module):
    """Four streams, mixed by weights that depend on the data: gated, named and not measured."""

    def __init__(self, depth: int = 3, width: int = 8, n: int = 4) -> None:
        super().__init__()
        self.n = n
        self.stem = nn.Linear(8, width)
        self.mix = nn.ModuleList(nn.Linear(width, n + 1) for _ in range(depth))
        self.mlps = nn.ModuleList(Mlp(width) for _ in range(depth))
        self.beta = nn.Parameter(torch.ones(depth, n, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x).unsqueeze(-2).expand(*x.shape[:-1], self.n, -1)
        for k, (mix, mlp) in enumerate(zip(self.mix, self.mlps, strict=True)):
            weights = torch.tanh(mix(h))
            inner = (weights[..., :1] * h).sum(-2)
            carried = weights[..., 1:].transpose(-1, -2) @ h
            h = carried + self.beta[k] * mlp(inner).unsqueeze(-2)
        return h.sum(-2)
