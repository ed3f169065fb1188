"""How often a captured step fetches numbers from the device: it is to be once.

The functions of `Tensor` that wait for the device are counted when skipscope's own code calls them.
On a CPU nothing moves, and `skipscope.reduce` makes use of that: it looks at sums there, to see
whether the range of float32 was enough. It does so for tensors on a CPU only; these looks are
counted apart.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from torch import Tensor

import skipscope
from benchmarks.arms import monitor_for
from benchmarks.nets import gpt_training
from benchmarks.settings import Settings
from skipscope import reduce

AIM = 1
#: Each makes the host wait for the device and copies from it.
TRANSFERS = ("cpu", "item", "tolist", "__float__", "__int__", "__bool__", "__index__", "nonzero")
#: Of a tensor that is on the host already; counted apart.
VIEWS = ("numpy", "__array__")
_PACKAGE = str(Path(skipscope.__file__).parent)


@contextmanager
def counted(package: str = _PACKAGE) -> Iterator[Counter[str]]:
    """Counts calls from code of `package` while it is open."""
    counts: Counter[str] = Counter()
    running: set[str] = set()  # a function mode calls the same function once more, from our code

    def watch(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if name in running:
                return function(*args, **kwargs)
            caller = sys._getframe(1).f_code.co_filename
            on_host = args[0].device.type == "cpu" and caller == reduce.__file__
            if caller.startswith(package):
                counts["look" if on_host else name] += 1
            running.add(name)
            try:
                return function(*args, **kwargs)
            finally:
                running.discard(name)

        return run

    with ExitStack() as stack:
        for name in (*TRANSFERS, *VIEWS):
            own = Tensor.__dict__.get(name)
            setattr(Tensor, name, watch(name, getattr(Tensor, name)))
            if own is None:  # it was inherited
                stack.callback(delattr, Tensor, name)
            else:
                stack.callback(setattr, Tensor, name, own)
        yield counts


def run(settings: Settings) -> Iterator[str]:
    """Counts over some captured steps, after the first."""
    training = gpt_training(settings.depth, settings.width, settings.batch, settings.tokens)
    monitor = monitor_for(training, preset="debug")
    per_step = []
    for _ in range(4):
        with counted() as counts, monitor.step():
            training.step()
        per_step.append(counts)
    for name, counts in (("the first", per_step[0]), ("a later", per_step[-1])):
        transfers = sum(counts[name] for name in TRANSFERS)
        calls = ", ".join(f"{name} {n}" for name, n in sorted(counts.items()))
        met = "met" if transfers <= AIM else "missed"
        yield f"{name} captured step: {transfers} transfers; aim {AIM}: {met} (calls: {calls})"
