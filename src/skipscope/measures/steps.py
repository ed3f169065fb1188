"""Facts of a step as tables: missing where unknown."""

from __future__ import annotations

from skipscope.measure import Floats, measure


@measure("loss", "step", "", "loss")
def loss(loss: Floats) -> Floats:
    """Loss of the step. NaN is a result at captured steps, once any loss was seen."""
    return loss


@measure("lr", "step", "", "learning rate", log=True)
def lr(lr: Floats) -> Floats:
    """Learning rate, one column for each parameter group: "lr.0", "lr.1" ..."""
    return lr


@measure("loss_scale", "step", "", "loss scale", log=True)
def loss_scale(loss_scale: Floats) -> Floats:
    """Factor of a GradScaler, 1 without one."""
    return loss_scale


@measure("skipped", "step", "", "no optimizer stepped")
def skipped(skipped: Floats) -> Floats:
    """1 where no optimizer stepped."""
    return skipped


@measure("epoch", "step", "", "epoch")
def epoch(epoch: Floats) -> Floats:
    """Epoch of the step, from 0."""
    return epoch


@measure("captured", "step", "", "captured")
def captured(captured: Floats) -> Floats:
    """1 where forward and backward were captured."""
    return captured


@measure("host_ms", "step", "ms", "monitor's time on the host")
def host_ms(host_ms: Floats) -> Floats:
    """Milliseconds that the monitor itself spent on the host."""
    return host_ms


@measure("seconds", "step", "s", "time to the next step", log=True)
def seconds(seconds: Floats) -> Floats:
    """Wall time from the start of this step to that of the next."""
    return seconds
