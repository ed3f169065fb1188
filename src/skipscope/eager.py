"""Compiled code runs eagerly as long as an interceptor is open, which would not see into it."""

from __future__ import annotations

import re
import warnings
from typing import Any

import torch

#: As `warnings.filters` keeps it: action, message, category, module, line.
_GLOBAL_HOOKS = (
    "ignore",
    re.compile("Using `torch.compile.module.` when there are global hooks on modules"),
    UserWarning,
    None,
    0,
)


class EagerStance:
    """Lets compiled code run eagerly, where an interceptor sees it, as long as one is open.

    Several monitors of one process may overlap without being nested, so the stance that was found
    is put back by whoever closes last. Meanwhile a compiled module does not warn of global forward
    hooks: they are ours, gone when it runs compiled again, and a warning may be an error to a user.

    >>> first, second = EagerStance(), EagerStance()
    >>> with first:
    ...     __ = second.__enter__()
    >>> EagerStance.count
    1
    >>> second.__exit__()
    """

    count = 0
    _found: Any = None

    def __enter__(self) -> EagerStance:
        if not EagerStance.count:
            EagerStance._found = torch.compiler.set_stance("force_eager")
            # Not by filterwarnings(), which would let every warning be shown once more.
            warnings.filters.insert(0, _GLOBAL_HOOKS)  # type: ignore[attr-defined]
        EagerStance.count += 1
        return self

    def __exit__(self, *_: object) -> None:
        EagerStance.count -= 1
        if not EagerStance.count:
            EagerStance._found.__exit__(None, None, None)
            EagerStance._found = None
            if _GLOBAL_HOOKS in warnings.filters:
                warnings.filters.remove(_GLOBAL_HOOKS)  # type: ignore[attr-defined]
