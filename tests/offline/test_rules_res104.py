"""RES104: parameters outside the optimizer, cut off, unused, or frozen on purpose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import ModuleClass, Parameter
from skipscope.rule import Hit, NotMeasurable
from skipscope.rule.parameter_rows import as_places
from skipscope.rules import RULES
from tests.offline.builders import make_map, make_parameter, make_site
from tests.offline.rule_values import rates, table, with_updates

RULE = RULES["RES104"]
PARTS = ("ln.weight", "fc1.weight", "fc2.weight", "alpha")
BLOCKS, STEPS = 4, 20


def net(**changed: dict[str, Any]) -> tuple[Parameter, ...]:
    """stem, 4 blocks of 4 parameters each, head; `changed` by name with _ for dots."""
    names = ["stem.weight", *(f"blocks.{k}.{part}" for k in range(BLOCKS) for part in PARTS)]
    made = []
    for index, name in enumerate([*names, "head.weight"]):
        inside = name.startswith("blocks")
        facts = {
            "name": name,
            "block": ".".join(name.split(".")[:2]) if inside else "",
            "sites": (int(name.split(".")[1]),) if inside else (),
            "role": name.split(".", 2)[-1],
        }
        made.append(make_parameter(index, **{**facts, **changed.get(name.replace(".", "_"), {})}))
    return tuple(made)


def look(
    parameters: tuple[Parameter, ...] | None = None,
    gradient: dict[str, float] | None = None,
    update: dict[str, float] | None = None,
    steps: Any = STEPS,
    **more: Any,
) -> tuple[Hit, ...]:
    """`gradient` and `update` by name; NaN: there was none."""
    parameters = parameters or net()
    at = np.arange(steps) if np.isscalar(steps) else np.asarray(steps)
    g = [(gradient or {}).get(p.name, 0.1) for p in parameters]
    u = [(update or {}).get(p.name, 1e-3 if p.group is not None else np.nan) for p in parameters]
    tables = with_updates(parameters, 0.1, 0.1, steps=at)
    columns = tuple(p.name for p in parameters)
    shape = (len(at), len(parameters))
    for name, values in (("gradient_norm", g), ("update_norm", u)):
        held = np.broadcast_to(np.asarray(values, float), shape)
        tables[name] = table(name, held, columns, at, np.isnan(held))
    given = {
        **tables,
        "sites": make_map(*(make_site(k) for k in range(BLOCKS))),
        "lr": rates(int(at[-1]) + 1),
        "weight_rms": table("weight_rms", np.full(shape, 0.1), columns, at),
    }
    return RULE.run({**given, **more})


NONE = float("nan")


def test_a_healthy_net_is_silent() -> None:
    assert not look()


def test_scalars_that_fell_between_the_groups() -> None:
    out = {f"blocks_{k}_alpha": {"group": None} for k in range(BLOCKS)}
    (hit,) = look(net(**out))
    assert hit.where == tuple(f"blocks.{k}.alpha" for k in range(BLOCKS))
    assert hit.severity is None
    assert "in no optimizer group" in hit.cause
    assert hit.value == pytest.approx(0.1)


@pytest.mark.parametrize(("steps", "found"), [(9, False), (10, True)])
def test_ten_real_steps(steps: int, found: bool) -> None:
    parameters = net(blocks_1_alpha={"group": None})
    if found:
        assert look(parameters, steps=steps)
        return
    with pytest.raises(NotMeasurable, match="needs 10 optimizer steps with lr > 0, has 9"):
        look(parameters, steps=steps)


def test_steps_with_lr_0_and_skipped_ones_do_not_count() -> None:
    parameters = net(blocks_1_alpha={"group": None})
    early = (np.arange(STEPS) < 11)[:, None]
    with pytest.raises(NotMeasurable, match="has 9"):
        look(parameters, lr=rates(STEPS, np.where(early, 0, 1e-3)))
    with pytest.raises(NotMeasurable, match="has 9"):
        look(parameters, skipped=table("skipped", early, ("skipped",)))


def test_a_group_with_lr_0_beside_one_that_runs() -> None:
    parameters = net(blocks_3_fc1_weight={"group": 1})
    (hit,) = look(parameters, update={"blocks.3.fc1.weight": 0}, lr=rates(20, [1e-3, 0], groups=2))
    assert hit.where == ("blocks.3.fc1",)
    assert hit.evidence["kind"] == "lr 0"


def test_in_a_group_and_never_moved() -> None:
    still = {"blocks.1.fc2.weight": 0.0}
    (hit,) = look(update=still)
    assert hit.evidence["kind"] == "not moved"
    half = net(blocks_1_fc2_weight={"dtype": "bfloat16"})
    assert not look(half, update=still)  # RES403
    assert not look(update=still, lr=rates(20, 1e-8))  # float32 cannot hold it: RES402


def test_a_gradient_that_is_rounding_noise() -> None:
    """A bias before a norm: SGD's update of it is lost in the weight."""
    still = {"blocks.1.fc2.weight": 0.0}
    assert not look(update=still, gradient={"blocks.1.fc2.weight": 0.9e-7})
    assert look(update=still, gradient={"blocks.1.fc2.weight": 1.1e-7}, lr=rates(20, 1e5))


def test_whole_blocks_from_the_input_on_look_meant() -> None:
    out = {
        f"blocks_{k}_{part.replace('.', '_')}": {"group": None} for k in (0, 1) for part in PARTS
    }
    (hit,) = look(net(stem_weight={"group": None}, **out))
    assert hit.severity == "info"
    assert hit.where == ("stem", "blocks.0", "blocks.1")


def test_whole_blocks_at_the_end_do_not() -> None:
    out = {f"blocks_3_{part.replace('.', '_')}": {"group": None} for part in PARTS}
    (hit,) = look(net(**out))
    assert (hit.severity, hit.where) == (None, ("blocks.3",))


def test_a_forgotten_stem() -> None:
    (hit,) = look(net(stem_weight={"group": None}))
    assert (hit.severity, hit.where) == (None, ("stem",))


def test_no_optimizer_holds_the_model() -> None:
    """Master copies: the optimizer moves other tensors."""
    out = {p.name.replace(".", "_"): {"group": None} for p in net()}
    assert not look(net(**out))


def test_cut_off_inside_a_branch() -> None:
    gone = {"blocks.2.ln.weight": NONE, "blocks.2.fc1.weight": NONE}
    parameters = net(
        blocks_2_ln_weight={"sites": ()}, blocks_2_fc1_weight={"sites": ()}
    )  # autograd does not see them
    (hit,) = look(parameters, gradient=gone, update=dict.fromkeys(gone, 0.0))
    assert hit.where == ("blocks.2.ln", "blocks.2.fc1")
    assert hit.severity is None
    assert "no_grad" in hit.cause


def test_frozen_on_purpose() -> None:
    parameters = net(blocks_0_fc1_weight={"trainable": False}, stem_weight={"trainable": False})
    assert not look(parameters, gradient={"blocks.0.fc1.weight": NONE, "stem.weight": NONE})


def test_exact_zeros_are_a_gradient() -> None:
    """LoRA A at step 0, a key bias, an expert that got no tokens in a step."""
    assert not look(gradient={"blocks.1.fc1.weight": 0.0}, update={"blocks.1.fc1.weight": 0.0})


def test_a_gradient_in_one_step_is_one() -> None:
    """Layer drop: the block runs in some steps only."""
    parameters = net()
    at = [p.name for p in parameters].index("blocks.1.fc1.weight")
    values = np.full((20, len(parameters)), 0.1)
    missing = np.zeros(values.shape, bool)
    missing[:19, at] = True
    gradient = table("gradient_norm", values, tuple(p.name for p in parameters), None, missing)
    assert not look(gradient_norm=gradient)


def test_an_unused_head_is_information() -> None:
    (hit,) = look(gradient={"head.weight": NONE})
    assert (hit.severity, hit.where) == ("info", ("head",))


def called(*paths: str) -> Any:
    sites = (make_site(k) for k in range(BLOCKS))
    return make_map(*sites, modules=(ModuleClass("Linear", paths, (0,) * len(paths)),))


def test_never_called_is_information() -> None:
    others = [f"blocks.{k}.{part}" for k in range(BLOCKS) for part in ("ln", "fc1")]
    (hit,) = look(gradient={"blocks.1.fc2.weight": NONE}, sites=called(*others))
    assert hit.severity == "info"


@pytest.mark.parametrize(("last", "found"), [(999, False), (1000, True)])
def test_an_expert_without_tokens_waits(last: int, found: bool) -> None:
    parameters = net(
        blocks_1_fc1_weight={"name": "blocks.1.experts.0.weight"},
        blocks_1_fc2_weight={"name": "blocks.1.experts.1.weight"},
    )
    idle = {"blocks.1.experts.1.weight": NONE}
    hits = look(parameters, idle, sites=called("blocks.1.experts.0"), steps=[*range(19), last])
    assert bool(hits) is found
    assert all(hit.severity == "info" for hit in hits)


def test_a_block_that_no_backward_reaches() -> None:
    reached = table("grad_sum_norm", np.ones((3, 4)), missing=np.tile(np.arange(4) == 3, (3, 1)))
    gone = {f"blocks.3.{part}": NONE for part in PARTS}
    (hit,) = look(gradient=gone, update=dict.fromkeys(gone, 0.0), grad_sum_norm=reached)
    assert (hit.severity, hit.where) == ("info", ("blocks.3",))


def test_an_optimizer_that_never_stepped() -> None:
    """Of a second optimizer nothing is known until it steps."""
    parameters = net(head_weight={"group": 1})
    hits = look(parameters, gradient={"head.weight": NONE}, update={"head.weight": NONE})
    assert not hits


def test_places() -> None:
    parameters = net()
    whole = [p for p in parameters if p.block == "blocks.1"]
    assert as_places(whole, parameters) == ("blocks.1",)
    assert as_places(whole[:2], parameters) == ("blocks.1.ln", "blocks.1.fc1")
    assert as_places(whole[3:], parameters) == ("blocks.1.alpha",)
