"""A LightningCLI program; the monitor stands in the YAML file and nowhere in the code.

pip install 'jsonargparse[signatures]' scikit-learn
python docs/examples/lightning_cli.py fit --config docs/examples/lightning_cli.yaml
"""

from __future__ import annotations

from digits import DigitsNet, loaders
from pytorch_lightning import LightningDataModule
from pytorch_lightning.cli import LightningCLI
from torch.utils.data import DataLoader


class Digits(LightningDataModule):
    """scikit-learn's digits."""

    def __init__(self, batch_size: int = 64) -> None:
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader:
        return loaders(self.batch_size)[0]

    def val_dataloader(self) -> DataLoader:
        return loaders(self.batch_size)[1]


if __name__ == "__main__":
    LightningCLI(DigitsNet, Digits)
