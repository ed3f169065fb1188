"""The history in memory and on disk: what goes in comes out, and a crash costs one block."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skipscope.history import (
    History,
    HistoryError,
    HistoryVersionError,
    HistoryWriter,
    Sink,
    history_paths,
)
from skipscope.history.format import block, header
from skipscope.records import (
    FACTS,
    HAVE_FORWARD,
    PARAMETER_SUMS,
    SUMS,
    ModuleClass,
    Run,
    SiteMap,
    Unseen,
)
from tests.offline.builders import make_group, make_history, make_map, make_parameter, make_site

NAN, INF = float("nan"), float("inf")


def site_map(count: int = 2) -> SiteMap:
    sites = [
        make_site(k, shape=(2, 3), link=("norm",), shortcut_path=("scale",)) for k in range(count)
    ]
    return make_map(
        *sites,
        unseen=(Unseen("gate", "gates.0", "net.py:3", 2, "a product"),),
        modules=(ModuleClass("Block", ("blocks.0", "blocks.1"), (1, 1)),),
    )


def numbers(step: int, sites: int = 2) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Sums that tell step, site and field: 1000*step + 100*site + field."""
    return 1000 * step + 100 * np.arange(sites)[:, None] + np.arange(len(SUMS), dtype=float)


def fact(step: int, loss: float = 1.0) -> list[float]:
    known = {"step": step, "loss": loss, "captured": 1}
    return [*(float(known.get(field.name, 0)) for field in FACTS), 1e-3]


def tell(sink: Sink, steps: range) -> None:
    """A small run: what a monitor calls."""
    for step in steps:
        sink.append_capture(step, numbers(step), [31, 1], [0, 2])
        sink.append_updates(step, np.full((1, len(PARAMETER_SUMS)), step), [7])
        sink.append_facts(fact(step))


def start(sink: Sink) -> None:
    sink.set_run(Run(run_id="a", model="Net", rules={"select": "[]"}))
    sink.set_sites(site_map())
    sink.set_parameters(
        (make_parameter(0, shape=(4, 2)),), (make_group(nesterov=False, foreach=None),)
    )


def written(directory: Path, run_id: str = "a", steps: range = range(3)) -> Path:
    writer = HistoryWriter(directory, run_id)
    start(writer)
    tell(writer, steps)
    writer.close()
    return writer.path


def assert_same(left: History, right: History) -> None:
    for name in ("run", "sites", "parameters", "groups"):
        assert getattr(left, name) == getattr(right, name), name
    arrays = (
        "capture_steps",
        "sums",
        "have",
        "why",
        "update_steps",
        "updates",
        "update_have",
        "facts",
    )
    for name in arrays:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)


def test_file_gives_back_what_memory_holds(tmp_path: Path) -> None:
    memory = History()
    start(memory)
    tell(memory, range(3))
    loaded = History.load(written(tmp_path))
    assert_same(loaded, memory)
    assert_same(History.load(tmp_path), memory)
    assert loaded.sites.sites[1].link == ("norm",)
    assert loaded.groups[0].options["foreach"] is None
    assert loaded.sums[2, 1, 5] == 2105
    assert loaded.field("sf")[2, 1] == 2105  # the sixth of SUMS
    assert loaded.fact("step").tolist() == [0, 1, 2]


def test_numbers_that_are_not_finite_survive_and_are_not_missing(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path, "a")
    writer.set_sites(site_map(1))
    sums = numbers(0, 1)
    sums[0, :4] = [NAN, INF, -INF, 65536.0]
    writer.append_capture(0, sums, [HAVE_FORWARD], [0])
    writer.append_capture(1, np.full((1, len(SUMS)), NAN), [0], [3])
    writer.close()
    loaded = History.load(tmp_path)
    np.testing.assert_array_equal(loaded.sums[0, 0, :4], [NAN, INF, -INF, 65536.0])
    assert loaded.have.tolist() == [[HAVE_FORWARD], [0]]
    assert loaded.why.tolist() == [[0], [3]]


def test_cut_at_any_byte_loads_everything_before_the_cut(tmp_path: Path) -> None:
    source = written(tmp_path / "whole", steps=range(2))
    data = source.read_bytes()
    whole = History.load(source)
    cut = tmp_path / "history-cut.skip"
    captures = []
    for size in range(len(data) + 1):
        cut.write_bytes(data[:size])
        loaded = History.load(cut)
        held = len(loaded.capture_steps)
        captures.append(held)
        np.testing.assert_array_equal(loaded.sums, whole.sums[:held, : len(loaded.sites.sites)])
    assert captures == sorted(captures)
    assert_same(loaded, whole)
    # the last block holds facts: without its last byte, both captures are there
    assert captures[-2] == 2
    first = data.index(b"CAPT")
    size = 8 + 16 + 2 * len(SUMS) * 8 + 2 * 2  # lengths and checksum, shape, floats, bits
    assert captures[first + 4 + size - 9] == 0
    assert captures[first + 4 + size] == 1


@pytest.mark.parametrize("kind", [b"CAPT", b"UPDA", b"FACT", b"RUN "])
def test_damaged_block_costs_that_block_only(tmp_path: Path, kind: bytes) -> None:
    path = written(tmp_path)
    data = bytearray(path.read_bytes())
    data[data.index(kind) + 40] ^= 0xFF
    path.write_bytes(data)
    loaded = History.load(path)
    held = {b"CAPT": (2, 3, 3), b"UPDA": (3, 2, 3), b"FACT": (3, 3, 2), b"RUN ": (3, 3, 3)}[kind]
    assert (len(loaded.capture_steps), len(loaded.update_steps), len(loaded.facts)) == held


@pytest.mark.parametrize("offset", range(-4, 12))
def test_damaged_head_costs_that_block_only(tmp_path: Path, offset: int) -> None:
    """Mark, kind, length and checksum of the second capture, byte by byte."""
    path = written(tmp_path)
    data = bytearray(path.read_bytes())
    data[data.index(b"CAPT", data.index(b"CAPT") + 4) + offset] ^= 0xFF
    path.write_bytes(data)
    loaded = History.load(path)
    assert loaded.capture_steps.tolist() == [0, 2]
    assert loaded.update_steps.tolist() == [0, 1, 2]


def test_captures_of_a_lost_site_map_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path)
    data = bytearray(path.read_bytes())
    data[data.index(b"SITE") + 40] ^= 0xFF
    path.write_bytes(data)
    loaded = History.load(path)
    assert loaded.capture_steps.size == 0
    assert loaded.fact("step").tolist() == [0, 1, 2]
    assert "only 0 are declared" in caplog.text


def test_resume_supersedes_what_came_later(tmp_path: Path) -> None:
    written(tmp_path, steps=range(5))
    writer = HistoryWriter(tmp_path, "a", resume=3)
    start(writer)
    writer.append_capture(3, numbers(9), [1, 1], [0, 0])
    writer.append_facts(fact(3, loss=7.0))
    writer.close()
    loaded = History.load(tmp_path)
    assert loaded.capture_steps.tolist() == [0, 1, 2, 3]
    assert loaded.sums[3, 0, 0] == 9000
    assert loaded.update_steps.tolist() == [0, 1, 2]
    assert loaded.fact("loss").tolist() == [1, 1, 1, 7]


def test_resume_after_a_crash_in_the_middle_of_a_block(tmp_path: Path) -> None:
    path = written(tmp_path, steps=range(3))
    path.write_bytes(path.read_bytes()[:-5])  # the last step facts are torn
    writer = HistoryWriter(tmp_path, "a", resume=3)
    tell(writer, range(3, 4))
    writer.close()
    loaded = History.load(tmp_path)
    assert loaded.capture_steps.tolist() == [0, 1, 2, 3]
    assert loaded.fact("step").tolist() == [0, 1, 3]


@pytest.mark.parametrize("size", [0, 5, 20, 30])
def test_resume_of_a_file_cut_in_its_header(tmp_path: Path, size: int) -> None:
    path = tmp_path / "history-a.skip"
    path.write_bytes(header("a")[:size])
    assert History.load(path).capture_steps.size == 0
    writer = HistoryWriter(tmp_path, "a", resume=0)
    start(writer)
    tell(writer, range(2))
    writer.close()
    assert History.load(path).capture_steps.tolist() == [0, 1]


def test_two_writers_in_one_directory_do_not_mix(tmp_path: Path) -> None:
    writers = [HistoryWriter(tmp_path, name) for name in ("a", "b")]
    for writer in writers:
        writer.set_sites(site_map())
    for step in range(4):
        for offset, writer in enumerate(writers):
            writer.append_capture(step, numbers(step + 10 * offset), [31, 31], [0, 0])
    for writer in writers:
        writer.close()
    os.utime(writers[0].path, (1, 1))
    assert history_paths(tmp_path) == [writers[1].path, writers[0].path]
    assert History.load(tmp_path).sums[:, 0, 0].tolist() == [10000, 11000, 12000, 13000]
    assert History.load(writers[0].path).sums[:, 0, 0].tolist() == [0, 1000, 2000, 3000]
    with pytest.raises(FileExistsError):
        HistoryWriter(tmp_path, "a")


class FullDisk:
    """A file that takes `room` more bytes, then refuses; and maybe refuses to be cut too."""

    def __init__(self, file: Any, room: int, cuts: bool) -> None:
        self.file, self.room, self.cuts = file, room, cuts

    def write(self, data: memoryview) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = int(self.file.write(data[: self.room]))
        self.room -= taken
        return taken

    def truncate(self, size: int) -> int:
        if not self.cuts:
            raise OSError(errno.EIO, "Input/output error")
        return int(self.file.truncate(size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@pytest.mark.parametrize("room", [0, 3, 17, 200])
@pytest.mark.parametrize("cuts", [True, False])
def test_refused_write_does_not_poison_later_blocks(
    tmp_path: Path, room: int, cuts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = HistoryWriter(tmp_path, "a")
    start(writer)
    at_start = writer.path.stat().st_size
    tell(writer, range(2))
    size = writer.path.stat().st_size
    disk = FullDisk(writer._file._raw, room, cuts)
    monkeypatch.setattr(writer._file, "_raw", disk)
    with pytest.raises(OSError, match="No space"):
        writer.append_capture(2, numbers(2), [31, 31], [0, 0])
    assert writer.path.stat().st_size == size + room
    disk.room = 10**6
    tell(writer, range(3, 5))
    writer.close()
    loaded = History.load(tmp_path)
    assert loaded.capture_steps.tolist() == [0, 1, 3, 4]
    assert loaded.update_steps.tolist() == [0, 1, 3, 4]
    whole_steps = writer.path.stat().st_size - size - (0 if cuts else room)
    assert whole_steps == size - at_start  # two steps take as much as two steps: nothing torn left


def test_newer_version_names_file_and_versions(tmp_path: Path) -> None:
    path = tmp_path / "history-x.skip"
    path.write_bytes(header("x").replace(b'"format": 1', b'"format": 99'))
    with pytest.raises(HistoryVersionError, match=r"history-x\.skip has history format 99.*to 1"):
        History.load(path)
    with pytest.raises(HistoryVersionError, match="upgrade"):
        HistoryWriter(tmp_path, "x", resume=1)


@pytest.mark.parametrize("data", [b"PK\x03\x04 something else", b"skipscope history\n[1]\n"])
def test_what_is_no_history_is_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "notes.skip"
    path.write_bytes(data)
    with pytest.raises(HistoryError, match=r"notes\.skip"):
        History.load(path)


def test_a_version_directory_is_read_and_an_absent_one_named(tmp_path: Path) -> None:
    """As the command line does: the file lies in `skipscope/` below a logger's directory."""
    HistoryWriter(tmp_path / "version_0" / "skipscope", "r1").close()
    assert History.load(tmp_path / "version_0").run == History().run
    with pytest.raises(FileNotFoundError, match=r"nothere: no such file .*; give a history-"):
        History.load("nothere")


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no history"):
        History.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        History.load(tmp_path / "absent.skip")
    with pytest.raises(ValueError, match="'a/b'"):
        HistoryWriter(tmp_path, "a/b")


def test_columns_are_matched_by_name(tmp_path: Path) -> None:
    """A file of a release with fewer sums, in another order, and one that we do not know."""
    names = {"sums": ["yy", "unknown", "n"], "facts": [f.name for f in FACTS]}
    path = tmp_path / "history-old.skip"
    writer = HistoryWriter(tmp_path, "ours")
    writer.set_sites(site_map(1))
    writer.close()
    capture = np.array([0, 0], "<i8")[:1].tobytes() + np.array([1, 3], "<u4").tobytes()
    capture += np.array([2.0, 5.0, 8.0], "<f8").tobytes() + bytes([1, 0])
    extra = [
        block(b"NAME", json.dumps(names).encode()),
        block(b"CAPT", capture),
        block(b"NEW ", b"?"),
    ]
    path.write_bytes(writer.path.read_bytes() + b"".join(extra))
    loaded = History.load(path)
    assert (loaded.field("n")[0, 0], loaded.field("yy")[0, 0]) == (8.0, 2.0)
    assert np.isnan(loaded.field("ss")[0, 0])
    assert loaded.table("row_alignment").missing.all()


def test_late_site_is_padded(tmp_path: Path) -> None:
    memory, writer = History(), HistoryWriter(tmp_path, "a")
    for sink in (memory, writer):
        sink.set_sites(site_map(1))
        sink.append_capture(0, numbers(0, 1), [31], [0])
        sink.set_sites(site_map(3))
        sink.append_capture(1, numbers(1, 3), [31, 31, 31], [0, 0, 0])
        sink.append_capture(2, numbers(2, 2), [31, 31], [0, 0])  # the third was not looked at
    writer.close()
    for history in (memory, History.load(tmp_path)):
        assert history.sums.shape == (3, 3, len(SUMS))
        assert history.have.tolist() == [[31, 0, 0], [31, 31, 31], [31, 31, 0]]
        assert np.isnan(history.sums[0, 1:]).all()
        assert np.isnan(history.sums[2, 2]).all()
        assert history.sums[1, 2, 0] == 1200


def test_late_group_is_padded() -> None:
    history = History()
    history.append_facts(fact(0))
    history.append_facts([*fact(1), 5e-4])
    np.testing.assert_array_equal(history.facts[:, len(FACTS) :], [[1e-3, NAN], [1e-3, 5e-4]])


@pytest.mark.parametrize("read_often", [False, True])
def test_window_drops_the_middle(read_often: bool) -> None:
    history = History(window=(2, 3))
    history.set_sites(site_map(1))
    for step in range(20):
        history.append_capture(step, numbers(step, 1), [31], [0])
        if read_often:
            assert len(history.sums) <= 5
    assert history.capture_steps.tolist() == [0, 1, 17, 18, 19]
    assert history.sums[:, 0, 0].tolist() == [0, 1000, 17000, 18000, 19000]


def test_window_of_updates_and_facts() -> None:
    history = History(window=(2, 3))
    history.set_parameters((make_parameter(0),))
    for step in range(60):
        history.append_updates(step, np.zeros((1, len(PARAMETER_SUMS))), [7])
    assert history.update_steps.tolist() == [*range(52), 57, 58, 59]
    rows = np.zeros((6000, len(FACTS)))
    rows[:, 0] = np.arange(6000)
    history.append_facts(rows)
    assert history.fact("step").tolist() == [*range(512), *range(6000 - 4096, 6000)]


def test_window_while_loading(tmp_path: Path) -> None:
    loaded = History.load(written(tmp_path, steps=range(9)), window=(2, 2))
    assert loaded.capture_steps.tolist() == [0, 1, 7, 8]


def test_resume_in_memory() -> None:
    history = History()
    start(history)
    tell(history, range(4))
    history.resume(2)
    assert history.capture_steps.tolist() == [0, 1]
    assert history.update_steps.tolist() == [0, 1]
    tell(history, range(2, 3))
    assert history.sums[:, 0, 0].tolist() == [0, 1000, 2000]


def test_arrays_belong_to_the_history() -> None:
    history = History()
    history.set_sites(site_map(1))
    sums = numbers(1, 1)
    history.append_capture(0, sums, [31], [0])
    sums[:] = 0  # the caller's buffer is used again
    assert history.sums[0, 0, 0] == 1000
    with pytest.raises(ValueError, match="read-only"):
        history.sums[0, 0, 0] = 1


def test_what_does_not_fit_is_refused() -> None:
    history = History()
    history.set_sites(site_map(1))
    with pytest.raises(ValueError, match="only 1 are declared"):
        history.append_capture(0, numbers(0, 2), [31, 31], [0, 0])
    with pytest.raises(ValueError, match="shapes"):
        history.append_capture(0, numbers(0, 1), [31, 31], [0])
    with pytest.raises(ValueError, match="step facts have 2 columns"):
        history.append_facts([1.0, 2.0])
    with pytest.raises(ValueError, match="order of their indices"):
        history.set_sites(make_map(make_site(1)))
    history.append_capture(0, numbers(0, 1), [31], [0])
    with pytest.raises(ValueError, match="numbers of 1 are held"):
        history.set_sites(SiteMap())


def test_empty_history_has_empty_arrays() -> None:
    history = History()
    assert history.sums.shape == (0, 0, len(SUMS))
    assert history.updates.shape == (0, 0, len(PARAMETER_SUMS))
    assert history.facts.shape == (0, len(FACTS))
    assert history.fact("loss").shape == (0,)


def test_what_a_history_shows_of_itself() -> None:
    assert repr(History()) == "<History of no model: 0 sites, 0 captures>"
    history = make_history([[0.5, 0.5], [0.5, 0.5]], steps=[0, 8])
    history.set_run(Run(model="Net"))
    assert repr(history) == "<History of Net: 2 sites, 2 captures, steps 0 to 8>"
    one = make_history([[0.5]], steps=[3])
    assert repr(one) == f"<History of {one.run.model or 'no model'}: 1 site, 1 capture, step 3>"
