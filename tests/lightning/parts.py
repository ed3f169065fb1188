"""Tiny nets, data and Trainers for both Lightning packages, and a count of what is attached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import lightning.pytorch as lp
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

NAMESPACES = {"pytorch_lightning": pl, "lightning.pytorch": lp}
Batch = list[Tensor]


# ------------------------------------------------------------------ nets
class ConvBlock(nn.Module):
    """In-place addition, in-place ReLU, dropout in the branch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.drop = nn.Dropout(0.2)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.drop(self.norm2(self.conv2(out)))
        out += x
        return self.relu(out)


class Cnn(nn.Module):
    def __init__(self, width: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.Sequential(*[ConvBlock(width) for _ in range(depth)])
        self.head = nn.Linear(width, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


class GptBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unsqueeze(1).chunk(3, -1)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
        x = x + self.drop(self.out(attended))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    def __init__(self, width: int = 8, depth: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, width)
        self.blocks = nn.ModuleList([GptBlock(width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Plain(nn.Module):
    """No residual addition at all."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


BODIES = {"cnn": Cnn, "gpt": Gpt, "plain": Plain}


# ------------------------------------------------------------------ LightningModules
class Training:
    """What the modules of both packages share.

    Args:
        body: name of a net. optimizer: "sgd", "adamw" or "fused".
        none_at: steps whose `training_step` returns None.
    """

    def __init__(
        self, body: str = "cnn", optimizer: str = "sgd", none_at: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.body = BODIES[body]()
        self.optimizer_name = optimizer
        self.none_at = none_at
        self.losses: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        return self.body(inputs)

    def loss(self, batch: Batch) -> Tensor:
        scores = self.body(batch[0])
        return F.cross_entropy(scores.flatten(0, -2), batch[1].flatten())

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        loss = self.loss(batch)
        self.losses.append(loss.detach().clone())
        if len(self.losses) - 1 in self.none_at:
            return None
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self.log("test_loss", self.loss(batch))

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self.body(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        if self.optimizer_name == "sgd":
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        fused = self.optimizer_name == "fused"
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=fused)


class Net(Training, pl.LightningModule):
    """For `pytorch_lightning`."""


class OtherNet(Training, lp.LightningModule):
    """For `lightning.pytorch`."""


NETS = {"pytorch_lightning": Net, "lightning.pytorch": OtherNet}


class TwoOptimizers(Net):
    """Manual optimization: two optimizers, two backwards a step."""

    def __init__(self, body: str = "cnn") -> None:
        super().__init__(body)
        self.automatic_optimization = False

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        for optimizer in self.optimizers():
            loss = self.loss(batch)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        self.losses.append(loss.detach().clone())
        return loss.detach()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        blocks = list(self.body.blocks.parameters())
        others = [p for p in self.parameters() if not any(p is b for b in blocks)]
        return [torch.optim.SGD(blocks, lr=0.1), torch.optim.AdamW(others, lr=1e-3)]


# ------------------------------------------------------------------ data
def samples(body: str, count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    if body == "gpt":
        tokens = torch.randint(11, (count, 7), generator=generator)
        return tokens[:, :-1], tokens[:, 1:]
    images = torch.randn(count, 1, 8, 8, generator=generator)
    return images, torch.randint(3, (count,), generator=generator)


def loader(
    body: str = "cnn", batches: int = 10, batch: int = 4, shuffle: bool = True
) -> DataLoader[Any]:
    data = TensorDataset(*samples(body, batches * batch))
    return DataLoader(data, batch, shuffle=shuffle)


class Stream(IterableDataset[Any]):
    """Batches of a length that nobody knows."""

    def __init__(self, batches: int, body: str = "cnn") -> None:
        self.batches, self.body = batches, body

    def __iter__(self) -> Iterator[Batch]:
        inputs, targets = samples(self.body, 4 * self.batches)
        yield from map(list, zip(inputs.split(4), targets.split(4), strict=True))


def stream(batches: int) -> DataLoader[Any]:
    return DataLoader(Stream(batches), batch_size=None)


# ------------------------------------------------------------------ Trainers
def trainer(root: Any, *callbacks: Any, package: str = "pytorch_lightning", **settings: Any) -> Any:
    """A quiet Trainer on the CPU."""
    quiet = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "enable_progress_bar": False,
        "max_epochs": 1,
        "default_root_dir": str(root),
        "callbacks": list(callbacks),
    }
    return NAMESPACES[package].Trainer(**{**quiet, **settings})


def weights(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers; of those in shards what lies here."""
    found: list[Any] = [*module.parameters(), *module.buffers()]
    return [w.to_local() if hasattr(w, "to_local") else w for w in found]


def equal(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    """Bit for bit, NaN included."""
    return len(ours) == len(theirs) and all(
        torch.equal(
            a.view(torch.uint8) if a.dim() else a.reshape(1).view(torch.uint8),
            b.view(torch.uint8) if b.dim() else b.reshape(1).view(torch.uint8),
        )
        for a, b in zip(ours, theirs, strict=True)
    )


# ------------------------------------------------------------------ what is attached
def attached(
    module: nn.Module, optimizers: Sequence[Any] = (), tensors: Sequence[Tensor] = ()
) -> dict[str, Any]:
    """Everything that a monitor could leave behind, counted."""
    from torch._dynamo import eval_frame

    hooks = [name for name in vars(nn.Module()) if "_hooks" in name]
    plain = [getattr(optimizer, "_optimizer", optimizer) for optimizer in optimizers]
    return {
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "stance": (eval_frame._stance.stance, eval_frame._stance.backend),
        "module hooks": sum(len(getattr(m, h)) for m in module.modules() for h in hooks),
        # every kind, and the marks that PyTorch keeps beside hooks
        "global module hooks": sum(
            len(value)
            for name, value in vars(torch_module).items()
            if name.startswith("_global_") and hasattr(value, "__len__")
        ),
        "tensor hooks": sum(
            len(t._backward_hooks or ())
            + len(getattr(t, "_post_accumulate_grad_hooks", None) or ())
            for t in [*module.parameters(), *tensors]
        ),
        "optimizer hooks": sum(
            len(o._optimizer_step_pre_hooks) + len(o._optimizer_step_post_hooks) for o in plain
        ),
        "global optimizer hooks": len(torch_optimizer._global_optimizer_pre_hooks)
        + len(torch_optimizer._global_optimizer_post_hooks),
        "grad enabled": torch.is_grad_enabled(),
    }
