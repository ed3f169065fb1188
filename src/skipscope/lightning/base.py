"""What our callbacks descend from: the callbacks of every installed Lightning package.

`lightning` and `pytorch_lightning` are two copies of one library whose classes do not know each
other; a callback that descends from both, as far as they are installed, suits either Trainer.
"""

from __future__ import annotations

import importlib
from typing import Any


def _callback_of(package: str) -> type | None:
    """The `Callback` of a Lightning package; None where it is not installed."""
    try:
        callback: type = importlib.import_module(package).Callback
    except ModuleNotFoundError as error:  # absent, or some other folder of that name
        if f"{package}.".startswith(f"{error.name}."):
            return None
        raise
    return callback


_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_BASES: Any = tuple(filter(None, map(_callback_of, _PACKAGES))) or (object,)


class CallbackBase(*_BASES):  # type: ignore[misc]
    """A callback for the Trainers of every installed Lightning package."""
