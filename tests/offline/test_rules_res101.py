"""RES101: one dominating branch, a whole stage, and what must stay silent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skipscope.records import SiteMap
from skipscope.rule import Hit, NotMeasurable
from skipscope.rules import RULES
from tests.offline.builders import make_map, make_parameter, make_site
from tests.offline.rule_values import chain, law, names, rates, staged, table

RULE = RULES["RES101"]
#: The captures of a run with default settings.
SPARSE = (0, 1, 2, 4, 8, 16, 32, 50)


def look(
    r: Any, sites: SiteMap, steps: Any = (0, 1, 2), more: Any = None, **over: float
) -> tuple[Hit, ...]:
    values = np.broadcast_to(np.asarray(r, float), (len(steps), len(sites.sites)))
    ratio = table("branch_ratio", values, names(sites), steps)
    return RULE.run({"branch_ratio": ratio, "sites": sites, **(more or {})}, **over)


def case_25(at: int = 7, count: int = 12) -> np.ndarray:
    """A normal chain with one branch of r = 34; every branch after it looks weak."""
    r = 0.4 / np.sqrt(1 + 0.05 * np.arange(count))
    r[at] = 34
    r[at + 1 :] /= 34
    return r


def test_one_branch_of_twelve_is_named_alone() -> None:
    (hit,) = look(case_25(), chain(12))
    assert hit.where == ("blocks.7",)
    assert hit.value == 34
    assert hit.severity is None
    assert "later branches look weak" in hit.message
    assert hit.evidence["expected"] == pytest.approx(0.35, rel=0.1)
    assert (hit.first_step, hit.last_step) == (0, 2)


@pytest.mark.parametrize("at", range(1, 12))
def test_wherever_it_stands(at: int) -> None:
    """Blocks before an early one have weak siblings only; none of them is named for that."""
    assert [hit.where for hit in look(case_25(at), chain(12))] == [(f"blocks.{at}",)]


@pytest.mark.parametrize("half", [6, 8])
def test_a_half_that_is_larger_is_no_site_of_its_own(half: int) -> None:
    """The last of the first half is 8 times the median of its neighbours on both sides, and as
    those before it."""
    r = np.array([2.0] * half + [0.2] * (16 - half))
    r[half - 1] = 2.4
    assert [hit for hit in look(r, chain(16)) if hit.where[0].startswith("blocks.")] == []


@pytest.mark.parametrize("zero", [1, 3, 4])
def test_a_branch_of_zero_among_three_siblings_hides_nothing(zero: int) -> None:
    """Sites 1 to 4 are judged, the first of a stage is not."""
    r = np.array([0.4, 0.3, 11.0, 0.3, 0.3])
    r[zero] = 0.0
    (hit,) = look(r, chain(5))
    assert hit.where == ("blocks.2",)
    assert hit.evidence["expected"] == pytest.approx(0.3)


def test_what_no_sibling_can_be_compared_with_is_no_pass() -> None:
    """Of three siblings of site 2 one is above 0, and half of three are two."""
    with pytest.raises(NotMeasurable, match=r"one site: needs 3 siblings .* at blocks\.2, blocks"):
        look([0.4, 0.0, 11.0, 0.3, 0.0], chain(5))
    assert look([0.0] * 5, chain(5)) == ()  # every branch at 0: nothing is too large


def test_two_dominating_branches_are_two() -> None:
    r = case_25(4, 16)
    r[10] = 5.0
    r[11:] /= 5
    assert [hit.where for hit in look(r, chain(16))] == [("blocks.4",), ("blocks.10",)]


@pytest.mark.parametrize("at", [1, 2, 3, 5, 6, 7, 9, 10, 11])
def test_stages_of_four_lend_each_other_siblings(at: int) -> None:
    """Three stages of four blocks leave two siblings in a stage: the law carries the others."""
    sites = staged(4, 4, 4)
    r = law(sites)
    r[at] = 20
    after = [k for k in range(12) if k > at and sites.sites[k].stage == sites.sites[at].stage]
    r[after] /= 20
    hits = look(r, sites, SPARSE[:3])
    assert [hit.where for hit in hits] == [(sites.sites[at].module,)]


def test_patience_is_three_captures_in_a_row() -> None:
    r = np.tile(law(chain(8)), (5, 1))
    r[1:3, 4] = r[4, 4] = 30
    assert not look(r, chain(8), range(5))
    assert look(r, chain(8), range(5), patience=2)[0].first_step == 1


def test_a_capture_without_the_site_is_passed_over() -> None:
    sites, r = chain(8), np.tile(law(chain(8)), (4, 1))
    r[:, 4] = 30
    missing = np.zeros(r.shape, bool)
    missing[1, 4] = True
    ratio = table("branch_ratio", r, steps=(0, 1, 2, 4), missing=missing)
    (hit,) = RULE.run({"branch_ratio": ratio, "sites": sites})
    assert (hit.first_step, hit.last_step) == (0, 4)


def test_the_first_block_behind_an_embedding_is_left_out() -> None:
    r = [51.4, 0.998, 0.72, 0.588, 0.489, 0.431, 0.409, 0.381]
    assert not look(r, chain(8, embedding_fed=True))
    pairs = make_map(
        *(make_site(k, module=f"h.{k // 2}", source=f"net.py:{k % 2}") for k in range(16)),
        embedding_fed=True,
    )
    r = 0.3 / np.sqrt(1 + np.arange(16))
    r[:2] = 3, 24
    assert not look(r, pairs)
    assert look(np.where(np.arange(16) == 3, 24, r), pairs)


def test_attention_is_compared_with_attention() -> None:
    """MLP branches ten times the attention ones are healthy: same role only."""
    sites = make_map(
        *(make_site(k, module=f"h.{k // 2}", source=f"net.py:{k % 2}") for k in range(16))
    )
    r = np.where(np.arange(16) % 2, 0.6, 0.06)
    assert not look(r, sites)


@pytest.mark.parametrize("seed", range(5))
def test_healthy_stages_with_projections_are_silent(seed: int) -> None:
    sites = staged(3, 4, 23, 3)
    noise = np.exp(0.3 * np.random.default_rng(seed).normal(size=(8, 33)))
    r = 1.3 * law(sites) * noise
    r[:, [3, 7, 30]] = 2.5
    assert not look(r, sites, SPARSE)


def test_waking_branches_differ_and_are_silent() -> None:
    """Zero-initialised branches wake at different speeds: .06 beside .008 is no dominance."""
    r = np.full((4, 9), 0.008)
    r[0] = 0
    r[1:, 4] = 0.08
    assert not look(r, chain(9), range(4))
    r[1:, 4] = 3
    assert look(r, chain(9), range(4))


@pytest.mark.parametrize(("woken", "found"), [(0.76, 0), (0.99, 0), (1.01, 1)])
def test_waking_branches_have_no_common_size(woken: float, found: int) -> None:
    """Scalars that started at 0 pass through 0 at any time; only r > 1 outweighs the shortcut.

    As behind a frozen first third, which stays at 0 and lends no sibling.
    """
    r = np.tile([0, 0, 0, 0.05, 0.1, 0.02, 0.1, 0.005, 0.03], (4, 1))
    r[0] = 0
    r[1:, 5] = woken
    assert len(look(r, chain(9), range(4))) == found


def test_a_branch_that_did_not_start_at_zero_is_not_waking() -> None:
    """Its zero initialisation was forgotten: r .6 from the first capture on, .05 beside it."""
    r = np.full((4, 9), 0.05)
    r[0] = 0
    r[:, 4] = 0.6
    (hit,) = look(r, chain(9), range(4))
    assert hit.where == ("blocks.4",)


def four_blocks() -> SiteMap:
    """Attention and MLP of four blocks behind an embedding: each judged one has two siblings."""
    paths = [f"h.{k}.{branch}" for k in range(4) for branch in ("attn", "mlp")]
    return make_map(
        *(make_site(k, name=path, module=path) for k, path in enumerate(paths)), embedding_fed=True
    )


@pytest.mark.parametrize("at", range(2, 8))
@pytest.mark.parametrize(("r", "found"), [(17.0, 1), (6.1, 1), (5.9, 0)])
def test_two_siblings_tell_of_a_branch_beyond_any_law(at: int, r: float, found: int) -> None:
    """No branch of the law is above 1 behind the first block; six times that is too large."""
    values = np.array([51, 0.6, 0.5, 0.4, 0.4, 0.3, 0.3, 0.3])
    values[at] = r
    hits = look(values, four_blocks())
    assert [hit.where for hit in hits] == [(four_blocks().sites[at].name,)] * found


def test_two_siblings_are_both_asked() -> None:
    """One as large, or not awake, is no witness."""
    values = np.array([51, 0.6, 17, 0.4, 3.0, 0.3, 0.3, 0.3])
    assert not look(values, four_blocks())
    values[4] = 0
    assert not look(values, four_blocks())
    values[4] = 2.8
    (hit,) = look(values, four_blocks())
    assert hit.evidence["expected"] == pytest.approx(1.55)  # between 2.8 and .3


def test_four_blocks_of_one_branch() -> None:
    (hit,) = look([0.5, 0.4, 17.0, 0.02], chain(4))
    assert hit.where == ("blocks.2",)
    with pytest.raises(NotMeasurable, match="needs 3 siblings within 6 places, has 2"):
        look([0.5, 0.4, 2.0, 0.2], chain(4))


def test_dropped_branches_are_no_siblings() -> None:
    rng = np.random.default_rng(0)
    r = np.where(rng.random((20, 8)) < 0.5, 0, 0.8)
    assert not look(r, chain(8), range(20))


def test_constant_r_over_depth_is_an_error_of_the_whole_stage() -> None:
    (hit,) = look(np.full(48, 1.35), chain(48))
    assert hit.where == ("model",)
    assert hit.severity == "error"
    assert "slope" in hit.message
    assert not look(np.full(48, 1.35), chain(48, norm_placement="post-norm"))
    assert not look(np.full(24, 1.0), chain(24, kind="scaled"))  # x/sqrt(2) + F/sqrt(2)
    assert not look(np.full(24, 1.0), chain(24, link=("scale",)))  # (x + F)/sqrt(2)
    assert look(np.full(24, 1.0), chain(24))
    assert not look(np.full(7, 1.9), chain(7))


def test_the_law_itself_is_silent_however_deep() -> None:
    sites = chain(300)
    assert not look(1.4 * law(sites), sites)
    assert not look(np.full(300, 1 / np.sqrt(300)), sites)


def test_fall_back_on_half_of_the_sites() -> None:
    r = 8 / (1 + np.arange(10.0)) ** 0.5  # decays by the law, but from far too high
    (hit,) = look(r, chain(10))
    assert "on half" in hit.message or "median" in hit.message
    steep = np.array([9, 9, 8, 7, 5, 3, 0.5, 0.3, 0.2, 0.1])
    (hit,) = look(steep, chain(10))
    assert "r above 2.00 on half" in hit.message


def test_a_hundred_sites_are_compared_with_their_own_past() -> None:
    sites = chain(100)
    r = np.tile(np.full(100, 0.5), (40, 1))  # median of r*sqrt(k+1) is 3.5 from the start
    lr = {"lr": rates(40), "groups": ()}
    assert not look(r, sites, range(40), lr)
    assert look(r, sites, range(40))  # without a learning rate only the absolute limit is left
    r[20:] = 1.6
    (hit,) = look(r, sites, range(40), lr)
    assert hit.first_step == 20


def test_the_heavy_weight_is_the_cause() -> None:
    parameters = tuple(make_parameter(k, name=f"blocks.{k}.fc2.weight") for k in range(12))
    rms = np.full((1, 12), 0.08)
    rms[0, 7] = 12
    more = {
        "parameters": parameters,
        "weight_rms": table("weight_rms", rms, tuple(p.name for p in parameters)),
        "growth": table("growth", np.sqrt(1 + np.tile(case_25(), (3, 1)) ** 2)),
    }
    (hit,) = look(case_25(), chain(12), more=more)
    assert "blocks.7.fc2.weight" in hit.cause
    assert hit.evidence["growth"] == pytest.approx(34, rel=0.01)


def test_too_few_sites_is_a_reason() -> None:
    with pytest.raises(NotMeasurable, match=r"needs 3 siblings .*has 2; needs 8 sites .*has 4"):
        look(np.ones(4), chain(4))


def test_without_a_site() -> None:
    with pytest.raises(NotMeasurable, match="nothing to measure it on"):
        RULE.run({"branch_ratio": table("branch_ratio", np.zeros((2, 0)), ()), "sites": SiteMap()})
