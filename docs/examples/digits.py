"""Train a residual CNN on scikit-learn's digits and read the health of its residual additions.

    python docs/examples/digits.py           # a healthy net
    python docs/examples/digits.py --sick    # the same net with one branch that dominates

Everything about skipscope is the one line `callbacks=[ResidualMonitor()]`.
"""

from __future__ import annotations

import argparse
import warnings

import torch
from pytorch_lightning import LightningModule, Trainer, seed_everything
from pytorch_lightning.loggers import TensorBoardLogger
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

from skipscope import ResidualMonitor

SICK_BLOCK = 5
SICK_SCALE = 30.0


class Block(nn.Module):
    """The basic block of a ResNet, in-place addition and ReLU included."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or width_in != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += identity
        return self.relu(out)


class DigitsNet(LightningModule):
    """A stem, three stages of four blocks each, and a linear head."""

    def __init__(self, width: int = 16, blocks_per_stage: int = 4, lr: float = 3e-3) -> None:
        super().__init__()
        self.lr = lr
        self.stem = nn.Sequential(
            nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        )
        blocks = []
        width_in = width
        for stage in range(3):
            for position in range(blocks_per_stage):
                stride = 2 if stage and not position else 1
                blocks.append(Block(width_in, width * 2**stage, stride))
                width_in = width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width_in, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        images, labels = batch
        accuracy = (self(images).argmax(1) == labels).float().mean()
        self.log("accuracy", accuracy, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def plant_fault(net: DigitsNet) -> str:
    """Let one branch dominate its addition; returns the block's name.

    Scaling a convolution would change nothing, the BatchNorm behind it divides the scale out
    again. The weight of that BatchNorm is the last thing the branch does before the addition.
    """
    nn.init.constant_(net.blocks[SICK_BLOCK].norm2.weight, SICK_SCALE)
    return f"blocks.{SICK_BLOCK}"


def loaders(batch_size: int = 64) -> tuple[DataLoader, DataLoader]:
    """Digits of 8 x 8 pixels, four fifths of them for training."""
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(
        torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)
    )
    train, validation = random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))
    return (
        DataLoader(train, batch_size, shuffle=True, drop_last=True),
        DataLoader(validation, batch_size),
    )


def main() -> None:
    """Train three epochs, then say where everything lies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sick", action="store_true", help="scale one branch until it dominates")
    sick = parser.parse_args().sick

    # Lightning advises on data loader workers and logging intervals; 1,800 images need neither.
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    seed_everything(0, verbose=False)
    net = DigitsNet()
    if sick:
        print(f"Planted fault: the branch of {plant_fault(net)} is scaled by {SICK_SCALE:g}.")
    train, validation = loaders()
    logger = TensorBoardLogger("demo_runs", name="sick" if sick else "healthy")
    trainer = Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=logger,
        callbacks=[ResidualMonitor()],
    )
    trainer.fit(net, train, validation)

    print(f"\nAccuracy on images not trained on: {trainer.callback_metrics['accuracy']:.1%}")
    print(f"Files: {logger.log_dir}")
    print("TensorBoard: .venv/bin/tensorboard --logdir demo_runs   then open http://localhost:6006")


if __name__ == "__main__":
    main()
