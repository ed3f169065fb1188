"""Watch a plain PyTorch loop: no Trainer, no Lightning import, no data to download.

    python docs/examples/plain_loop.py

A pre-norm residual MLP learns a function of random inputs. What skipscope needs are three calls:
`monitor.step()` around each optimizer step, `monitor.epoch_end()`, `monitor.close()`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

from skipscope import Monitor

DIRECTORY = "demo_runs/plain_loop"
EPOCHS = 2


class Block(nn.Module):
    """A pre-norm residual block: `x + F(norm(x))`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.contract(nn.functional.gelu(self.expand(self.norm(x))))


def data(samples: int = 2048) -> DataLoader:
    """Random inputs of 16 numbers, and a target that a linear model cannot reach."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(samples, 16, generator=generator)
    targets = torch.sin(inputs[:, :1] * inputs[:, 1:2]) + inputs[:, 2:3].abs()
    return DataLoader(TensorDataset(inputs, targets), batch_size=64, shuffle=True)


def main() -> None:
    """Train, with a report after each epoch."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(16, 32), *(Block(32) for _ in range(8)), nn.LayerNorm(32), nn.Linear(32, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = data()
    with SummaryWriter(DIRECTORY) as writer:
        monitor = Monitor(
            model, optimizer, loggers=[writer], every_n_steps=20, dirpath=f"{DIRECTORY}/skipscope"
        )
        for _ in range(EPOCHS):
            for inputs, targets in loader:
                with monitor.step():
                    loss = nn.functional.mse_loss(model(inputs), targets)
                    optimizer.zero_grad()
                    loss.backward()
                    monitor.gradients_ready()  # only because gradients are clipped next
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
            monitor.epoch_end()
        monitor.close()
    print(f"Files: {DIRECTORY}")
    print(f"The report once more, without torch: skipscope report {DIRECTORY}")


if __name__ == "__main__":
    main()
