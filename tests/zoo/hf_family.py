"""A tiny configuration of a `transformers` family, and short ways to write the common ones.

`transformers` is imported when a model is built, so that the tables cost nothing to import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from tests.zoo.hf_options import CAUSAL, PIXELS, SEQ2SEQ, L, pixels, text, text_pair


@dataclass(frozen=True)
class Family:
    """A configuration and its block-level count; `kinds` where not all shortcuts are identities."""

    name: str
    prefix: str  #: of `<prefix>Config` and `<prefix>Model`
    options: Mapping[str, Any]
    block_level: int
    example: Callable[[], dict[str, Any]] = text
    kinds: Mapping[str, int] = field(default_factory=dict)
    nested: int | None = None
    streams: int | None = None
    model: str = "Model"
    notes: str = ""

    def build(self) -> nn.Module:
        """The model in training mode."""
        import transformers

        transformers.logging.set_verbosity_error()
        config = getattr(transformers, f"{self.prefix}Config")(**self.options)
        return getattr(transformers, self.prefix + self.model)(config).train()


def serial(name: str, prefix: str, options: Mapping[str, Any] = CAUSAL, **more: Any) -> Family:
    """Two additions a layer."""
    return Family(name, prefix, options, 2 * L, **more)


def parallel(name: str, prefix: str, options: Mapping[str, Any] = CAUSAL, **more: Any) -> Family:
    """One addition a layer: attention and MLP side by side."""
    return Family(name, prefix, options, L, **more)


def seq2seq(name: str, prefix: str, options: Mapping[str, Any] = SEQ2SEQ, **more: Any) -> Family:
    """Two additions an encoder layer, three a decoder layer."""
    return Family(name, prefix, options, 5 * L, **{"example": text_pair, "streams": 2, **more})


def vision(name: str, prefix: str, options: Mapping[str, Any] = PIXELS, **more: Any) -> Family:
    return Family(name, prefix, options, 2 * L, **{"example": pixels, **more})
