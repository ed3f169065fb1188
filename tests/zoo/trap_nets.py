"""Traps that need a net of their own: additions in modules, dictionaries, towers, frozen parts."""

from __future__ import annotations

from torch import Tensor, nn

from tests.zoo.traps import WIDTH, Block, Branch, Net, method


class Add(nn.Module):
    """The addition is a module of its own."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


class AddModule(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.stem, self.add = nn.Linear(WIDTH, WIDTH), Add()
        self.branches = nn.ModuleList(Branch() for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for branch in self.branches:
            x = self.add(branch(x), x)
        return x


class Residual(nn.Module):
    """The wrapper `fn(x) + x`."""

    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x) + x


class DictBlock(nn.Module):
    """Keyword input, dict output."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = Branch()

    def forward(self, *, hidden: Tensor, scale: float = 1.0) -> dict[str, Tensor | None]:
        return {"hidden": hidden + scale * self.branch(hidden), "cache": None}


class DictNet(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(DictBlock() for _ in range(depth))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.stem(x)
        for block in self.blocks:
            x = block(hidden=x)["hidden"]
        return {"logits": x}


class Skipping(Net):
    """A block that is not run in this step (LayerDrop with a fixed draw)."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for index, block in enumerate(self.blocks):
            if index != 1:
                x = block(x)
        return self.head(x)


class Towers(nn.Module):
    """Two towers that meet in a product of features."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(WIDTH, WIDTH), *[Block(method) for _ in range(depth)])
        self.right = nn.Sequential(nn.Linear(WIDTH, WIDTH), *[Block(method) for _ in range(depth)])

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x).mean(1) @ self.right(x.flip(1)).mean(1).T


class FrozenPrefix(Net):
    """Stem and first block frozen: no graph before the second block."""

    def __init__(self) -> None:
        super().__init__(method)
        self.stem.requires_grad_(False)
        self.blocks[0].requires_grad_(False)


def torch_encoder(norm_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True, norm_first=norm_first)
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    )


class TorchTransformer(nn.Module):
    """torch's own encoder and decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.model = nn.Transformer(WIDTH, 2, 2, 2, 16, batch_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.model(self.stem(source), self.stem(target), tgt_mask=mask)
