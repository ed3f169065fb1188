"""Real transformers, extrapolated from six layers to a depth that is then built."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from skipscope import Monitor, extrapolate
from skipscope.extrapolation.records import At, Number, StageAt

WORDS, LENGTH, WIDTH = 50, 32, 64
#: A draw of the weights moves a number of nets this narrow by some percent.
CHANCE = 1.1


def gpt2(layers: int) -> nn.Module:
    """GPT-2 starts the last matrices of its branches at 1/sqrt(2*layers)."""
    import transformers

    config = transformers.GPT2Config(
        n_layer=layers, n_embd=WIDTH, n_head=4, vocab_size=WORDS, n_positions=LENGTH,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2Model(config)


def llama(layers: int) -> nn.Module:
    """Llama starts its branches alike at every depth."""
    import transformers

    config = transformers.LlamaConfig(
        num_hidden_layers=layers, hidden_size=WIDTH, intermediate_size=172,
        num_attention_heads=4, num_key_value_heads=4, vocab_size=WORDS,
        max_position_embeddings=LENGTH,
    )  # fmt: skip
    return transformers.LlamaModel(config)


def started(make: Any, layers: int) -> StageAt:
    """Its first step, and what that says of four times the depth."""
    torch.manual_seed(0)
    net, head = make(layers), nn.Linear(WIDTH, WORDS)
    words, targets = torch.randint(WORDS, (2, 8, LENGTH))
    optimizer = torch.optim.AdamW([*net.parameters(), *head.parameters()], lr=1e-3)
    monitor = Monitor(net, optimizer, report=[], on_error="raise")
    with monitor.step():
        said = head(net(words).last_hidden_state)
        nn.functional.cross_entropy(said.flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    monitor.close()
    return extrapolate(monitor.history, "4x").numbers.moments[0].streams[0].stages[0]


def holds(ends: tuple[At, ...], built: At, name: str) -> bool:
    """Whether the range of these laws holds what the deeper net has, up to its draw."""
    values: list[Number] = [getattr(one, name) for one in (*ends, built)]
    known = [one for one in values if one is not None]
    assert len(known) == len(values)
    *range_, was = known
    return min(range_) / CHANCE < was < max(range_) * CHANCE


def test_gpt2_stays_bounded() -> None:
    found, built = started(gpt2, 6), started(gpt2, 24).measured
    assert found.forward.laws == found.gradient.laws == ("normalised-scaled", "depth-scaled")
    shrinking, others = found.otherwise[:2], found.otherwise[2:]
    for name in ("growth", "budget", "multiplier"):
        assert holds(shrinking, built, name)
        assert not holds(others, built, name)


def test_llama_lies_between_linear_variance_and_a_factor() -> None:
    found, built = started(llama, 6), started(llama, 24).measured
    assert found.forward.laws == ("normalised", "constant")
    plain, shrinking = found.otherwise[:2], found.otherwise[2:]
    for name in ("growth", "budget"):
        assert holds(plain, built, name)
        assert not holds(shrinking, built, name)
