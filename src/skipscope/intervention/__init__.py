"""Other sums than the model's own: shortcuts left out, branches scaled, while a context is open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from skipscope.intervention.arm import Projections
from skipscope.intervention.opened import Intervention as Intervention
from skipscope.intervention.opened import Left as Left


@contextmanager
def intervene(
    model: nn.Module,
    sites: str | Sequence[str] | None = None,
    *,
    branch_scale: float = 1.0,
    shortcut: bool = True,
    projections: Projections = "keep",
) -> Iterator[Intervention]:
    """Changes the sum of residual additions while it is open: y = s + a F, or y = a F.

    Parameters, modules and the user's code stay what they are, so a model can be its own plain
    control. It holds for whole trainings, for forwards without gradient (a validation) too, and
    ends with the context. Gradients are those of the changed sum.

    The first forward in each mode (train, eval) is rehearsed once: it runs a second time, on copies
    of inputs and buffers and from the same random state, to find the sites. Later ones are
    recognised by module, line and order, and cost no search. A forward that takes another path is
    rehearsed again.

    What `branch_scale` multiplies is the branch as it is added, with a factor of the model's own
    (`x + 0.1 * F(x)`). `shortcut=False` leaves out identity shortcuts, scaled ones included; a
    projection P(x) is kept unless `projections="cut"`, which leaves P without gradient. Additions
    outside of every module's forward (in a training loop) are left as they are. A compiled model
    runs eagerly meanwhile. What a checkpoint recomputes is changed while the context is open, so
    the backward belongs inside of it.

    Args:
        model: the model; wrappers such as DDP may be around it.
        sites: names of sites, or module paths (with `*` and `?`) or class names, each of which
            stands for the block-level sites inside; None: all block-level sites.
        branch_scale: a.
        shortcut: whether s is added.
        projections: what `shortcut=False` does at projections: "keep" or "cut" P(x).

    Yields:
        What it acts on, known after the first forward; `print` shows it.

    Raises:
        TypeError: `model` is no `nn.Module`, or a TorchScript module.
        ValueError: `sites` is empty, or holds an unknown name; another intervention is open on the
            model or on a part of it; it uses flex_attention compiled. At a forward: sites cannot be
            told (under `no_grad`, in a reentrant checkpoint, in a transform of `torch.func`) or
            followed (a checkpoint around a function, a sum of one sample without its batch), or
            there is none to act on. At the end: no module of the model ran that may
            form a sum. At a backward after the end: a checkpoint recomputes a sum.

    Example:
        >>> import torch
        >>> class Block(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.fc = nn.Linear(1, 1, bias=False)
        ...         nn.init.constant_(self.fc.weight, 3.0)
        ...     def forward(self, x):
        ...         return x + self.fc(x)
        >>> net, x = nn.Sequential(Block(), Block()), torch.ones(1, 1)
        >>> with intervene(net, shortcut=False) as plain:
        ...     y = net(x)
        >>> net(x).item(), y.item(), [site.name for site in plain.sites]
        (16.0, 9.0, ['0', '1'])
    """
    intervention = Intervention(
        model, sites, branch_scale=branch_scale, shortcut=shortcut, projections=projections
    )
    with intervention:
        yield intervention
    intervention.check_end()
