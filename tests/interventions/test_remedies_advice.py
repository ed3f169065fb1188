"""The calls that a report prints, run as they stand: what they are named for is gone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

import skipscope
from skipscope.records import Finding

WIDTH = 16
X = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(1))
TOKENS = torch.randint(17, (16, 12), generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """Without a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(torch.relu(self.a(x)))


def mlp() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *(Block() for _ in range(10)))
    with torch.no_grad():
        model[6].b.weight *= 60
    return model, X


def gpt() -> tuple[nn.Module, Tensor]:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=17, n_positions=16, n_embd=WIDTH, n_layer=6, n_head=2, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        model.transformer.h[3].mlp.c_proj.weight *= 200
    return model, TOKENS


def blown_up() -> tuple[nn.Module, Tensor]:
    """He's start without a norm: r is 1 at every depth."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *(Block() for _ in range(16)))
    for block in model[1:]:
        for layer in (block.a, block.b):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    with torch.no_grad():
        for block in model[1:]:
            block.b.weight *= 2
    return model, X


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    if x is TOKENS:
        return model(x, labels=x).loss
    return nn.functional.mse_loss(model(x), x)


def trained(
    model: nn.Module, x: Tensor, steps: int = 20, optimizer: torch.optim.Optimizer | None = None
) -> Sequence[Finding]:
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-3)
    monitor = skipscope.Monitor(model, optimizer, report=[], on_error="raise")
    for _ in range(steps):
        with monitor.step():
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
    monitor.close()
    return monitor.diagnose().findings


def calls(findings: Sequence[Finding], code: str) -> list[str]:
    """What the advice of one rule's findings tells to call."""
    texts = [text for finding in findings if finding.code == code for text in finding.advice]
    return [call for text in texts for call in re.findall(r"skipscope\.remedies\.\w+\(.*?\)", text)]


@pytest.mark.parametrize(
    ("make", "site"),
    [(mlp, "6"), (gpt, "transformer.h.3/mlp"), (blown_up, "model")],
)
def test_what_is_advised_against_a_dominating_branch_ends_it(
    make: Callable[[], tuple[nn.Module, Tensor]], site: str
) -> None:
    findings = trained(*make())
    assert [f.where for f in findings if f.code == "RES101"] == [(site,)]
    advised = calls(findings, "RES101")
    assert len(advised) == 2
    for call in advised:
        model, x = make()
        eval(call, {"skipscope": skipscope, "model": model, "x": x})
        assert "RES101" not in {f.code for f in trained(model, x)}, call


def test_preflight_advises_the_same() -> None:
    model, x = mlp()
    found = skipscope.preflight(model, x)
    for call in calls(found.diagnosis.findings, "RES101"):
        model, x = mlp()
        eval(call, {"skipscope": skipscope, "model": model, "x": x})
        assert skipscope.preflight(model, x).ok, call


# ---------------------------------------------------------------------- dead branches
class Bare(nn.Module):
    """Two matrices, and a gate where asked for: one number, or one for each channel."""

    def __init__(self, gate: float | Tensor | None = None) -> None:
        super().__init__()
        self.n = nn.LayerNorm(WIDTH)
        self.a, self.b = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.g = None if gate is None else nn.Parameter(torch.as_tensor(gate))

    def forward(self, x: Tensor) -> Tensor:
        f = self.b(torch.tanh(self.a(self.n(x))))
        return x + (f if self.g is None else self.g * f)


def with_bare(*blocks: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *blocks)


def two_matrices() -> nn.Module:
    torch.manual_seed(0)
    model = with_bare(*(Bare() for _ in range(6)))
    for at in (2, 5):
        nn.init.zeros_(model[at].a.weight)
        nn.init.zeros_(model[at].b.weight)
    return model


def gate_and_matrix() -> nn.Module:
    torch.manual_seed(0)
    model = with_bare(*(Bare(0.0 if k in (1, 4) else 1.0) for k in range(6)))
    for at in (2, 5):
        nn.init.zeros_(model[at].b.weight)
    return model


def gates_and_matrix() -> nn.Module:
    torch.manual_seed(0)
    model = with_bare(*(Bare(torch.full((WIDTH,), 0.0 if k in (1, 4) else 1.0)) for k in range(6)))
    for at in (2, 5):
        nn.init.zeros_(model[at].b.weight)
    return model


def norm_and_gates() -> nn.Module:
    """Two factors of 0 and no matrix, with the norm's bias at 0 as ever."""
    torch.manual_seed(0)
    model = with_bare(*(Bare(torch.full((WIDTH,), 0.0 if k in (1, 4) else 1.0)) for k in range(6)))
    for at in (2, 5):
        nn.init.zeros_(model[at].n.weight)
    return model


@pytest.mark.parametrize("make", [two_matrices, gate_and_matrix, gates_and_matrix, norm_and_gates])
def test_two_factors_of_zero_are_advised_to_be_one(make: Callable[[], nn.Module]) -> None:
    live = [f for f in trained(make(), X) if f.code == "RES103"]
    start = [f for f in skipscope.preflight(make(), X).diagnosis.findings if f.code == "RES103"]
    assert [f.where for f in live] == [("2", "5")]
    assert [f.where for f in start] == [("2",), ("5",)]
    for findings in (live, start):
        model = make()
        for finding in findings:
            assert "zero_init_branches" not in " ".join(finding.advice)
            (line,) = re.findall(r"for name in \[.*", finding.advice[0])
            exec(line, {"torch": torch, "model": model})
        assert skipscope.preflight(model, X).asleep == ()
        assert "RES103" not in {f.code for f in trained(model, X)}


def test_a_gate_in_no_group_is_advised_to_be_put_into_one() -> None:
    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = with_bare(*(Bare(0.0) for _ in range(6)))
        return model, torch.optim.AdamW([p for p in model.parameters() if p.dim()], 1e-3)

    def found(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Finding]:
        findings = trained(model, X, optimizer=optimizer)
        return [f for f in findings if f.code == "RES103"]

    (finding,) = found(*made())
    assert "in no optimizer group" in finding.cause
    assert "zero_init_branches" not in " ".join(finding.advice)
    (call,) = re.findall(r"optimizer\.add_param_group\(.*\)", finding.advice[0])
    model, optimizer = made()
    eval(call, {"model": model, "optimizer": optimizer})
    assert found(model, optimizer) == []


def test_a_branch_that_a_relu_keeps_at_zero_is_not_said_to_have_two_factors_of_zero() -> None:
    class Ending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(WIDTH, WIDTH)
            nn.init.zeros_(self.fc.weight)
            nn.init.zeros_(self.fc.bias)

        def forward(self, x: Tensor) -> Tensor:
            return x + torch.relu(self.fc(x))

    found = skipscope.preflight(with_bare(Bare(), Ending()), X).diagnosis.findings
    (finding,) = (f for f in found if f.code == "RES103")
    assert "together" not in finding.cause
    assert "ReLU behind a last weight that is 0" in finding.advice[0]
