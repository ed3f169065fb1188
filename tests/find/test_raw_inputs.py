"""Data without a gradient enters in the first call: its weights are the branch's all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from skipscope import find_residuals

WIDTH = 8


class Around(nn.Module):
    """x + F(x), F being one call of a layer that holds several weights."""

    def __init__(self, layer: nn.Module, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x: Tensor) -> Tensor:
        return x + self.call(self.layer, x)


def attended(layer: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = layer(x, x, x, need_weights=False)[0]
    return found


def crossed(layer: nn.Module, x: Tensor) -> Tensor:
    memory = x.detach()[..., :6]
    found: Tensor = layer(x, memory, memory, need_weights=False)[0]
    return found


def first(layer: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = layer(x)[0]
    return found


LAYERS: dict[str, Callable[[], Around]] = {
    "attention": lambda: Around(nn.MultiheadAttention(WIDTH, 2, batch_first=True), attended),
    "cross-attention": lambda: Around(
        nn.MultiheadAttention(WIDTH, 2, kdim=6, vdim=6, batch_first=True), crossed
    ),
    "gru": lambda: Around(nn.GRU(WIDTH, WIDTH, batch_first=True), first),
    "lstm of two layers": lambda: Around(nn.LSTM(WIDTH, WIDTH, 2, batch_first=True), first),
    "bilinear": lambda: Around(nn.Bilinear(WIDTH, WIDTH, WIDTH), lambda layer, x: layer(x, x)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_all_weights_of_the_first_call_are_the_branchs(name: str) -> None:
    net = LAYERS[name]()
    (site,) = find_residuals(net, torch.randn(2, 5, WIDTH)).sites
    assert site.kind == "identity"
    assert set(site.parameters) == {path for path, _ in net.named_parameters()}


def test_an_encoder_is_the_same_with_and_without_a_gradient_at_its_input() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    net, x = nn.TransformerEncoder(layer, 2), torch.randn(2, 5, WIDTH)
    raw, tracked = (find_residuals(net, one) for one in (x, x.clone().requires_grad_()))
    assert raw == tracked
    assert [site.name for site in raw.sites][:2] == ["layers.0/self_attn", "layers.0/linear2"]
