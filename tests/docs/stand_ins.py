"""What the code blocks of the documentation take for granted: a model, a loader, an optimizer.

A block on the page starts where its reader is, with a model of his own. These stand in for it.
"""

from __future__ import annotations

from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    """A pre-norm residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 2 * width)
        self.contract = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.contract(self.expand(self.norm(x)).relu())


class Model(LightningModule):
    """Four residual blocks between two linear maps."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(16, 8)
        self.blocks = nn.Sequential(*(Block(8) for _ in range(4)))
        self.head = nn.Linear(8, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(inputs)))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def namespace() -> dict[str, Any]:
    """Fresh names for the blocks of one page."""
    torch.manual_seed(0)
    inputs = torch.randn(64, 16)
    model = Model()
    return {
        "model": model,
        "loader": DataLoader(TensorDataset(inputs, inputs[:, :1].abs()), batch_size=16),
        "optimizer": model.configure_optimizers(),
        "loss_fn": nn.functional.mse_loss,
    }
