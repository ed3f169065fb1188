"""Cells over several processes, each of which trains one after the other.

Processes are spawned: a fork of one that has threads or a device is not safe. They end with the
study's own process, however that ends, and leave the cell they train unfinished: a process that
outlived it would write into cells that are begun anew.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from skipscope.evidence.outcome import Cell, Outcome
from skipscope.evidence.store import StudyError, save_outcome
from skipscope.study.plan import Plan
from skipscope.study.training import train


@dataclass(frozen=True)
class Failure:
    """What became of a cell instead of an outcome."""

    error: str  #: its type and what it says
    trace: str  #: in the process where it was raised


class _ThereError(Exception):
    """The traceback of another process, shown above that of this one."""

    def __init__(self, trace: str) -> None:
        super().__init__(f"\n{trace}")


Answer = Outcome | Failure


def run_cell(plan: Plan, cell: Cell, folder: Path) -> Outcome:
    """Trains a cell and writes its outcome, last of all its files.

    Raises:
        StudyError: the training failed, or something that the study was given.
        OSError: the disk refuses.
    """
    try:
        outcome = train(plan, cell, folder)
    except (StudyError, OSError):
        raise
    except Exception as error:
        raise StudyError(f"{_failed(cell)}: {type(error).__name__}: {error}") from error
    save_outcome(folder, outcome)
    return outcome


def _failed(cell: Cell) -> str:
    return f"the training of {cell.key} failed"


def run_cells(
    plan: Plan, cells: Sequence[Cell], folder: Path, jobs: int
) -> Generator[Outcome, None, None]:
    """What comes of some cells, as they end, the long ones begun first.

    Raises:
        StudyError: the plan cannot be sent to a process, a process ended, or a training failed.
    """
    waiting = sorted(cells, key=lambda cell: (-cell.depth, cell.seed, cell.key))
    if jobs == 1 or len(waiting) < 2:
        for cell in waiting:
            yield run_cell(plan, cell, folder)
        return
    with _Pool(_pickled(plan), folder, min(jobs, len(waiting))) as pool:
        yield from pool.run(waiting)


def _pickled(plan: Plan) -> bytes:
    try:
        return pickle.dumps(plan)
    except Exception as error:  # whatever the __reduce__ of what was given may raise
        raise StudyError(f"jobs: {_unsent(error)}") from error


def _unsent(error: Exception) -> str:
    return (
        f"another process cannot be given this study ({error}): define the factory, the loss and "
        "the optimizer at the top level of a module, or run with jobs=1"
    )


@contextmanager
def _deaf() -> Iterator[None]:
    """A process that is started here ignores Ctrl-C from its first moment: we end it.

    Only the main thread may change what a signal does; started from another one, it ignores Ctrl-C
    once it works.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, heard)


class _Pool:
    """Some processes, and the cell that each has."""

    def __init__(self, plan: bytes, folder: Path, jobs: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._workers: dict[Connection, SpawnProcess] = {}
        self._has: dict[Connection, Cell] = {}
        for _ in range(jobs):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_work, args=(theirs, folder), daemon=True)
            with _deaf():
                worker.start()
            theirs.close()
            self._workers[ours] = worker
        for pipe in self._workers:
            # A process that ended at once is told of where its answer is missed.
            _try_send(pipe, plan)

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for pipe, worker in self._workers.items():
            pipe.close()
            if kind is not None:  # what it trains now is begun anew another time
                worker.terminate()
        for worker in self._workers.values():
            worker.join()

    def run(self, waiting: list[Cell]) -> Iterator[Outcome]:
        """What comes of the cells, as they end."""
        for pipe in self._workers:
            self._next(pipe, waiting)
        while self._has:
            for ready in wait(list(self._has)):
                pipe = next(one for one in self._has if one is ready)
                outcome = self._answer(pipe)
                self._next(pipe, waiting)
                yield outcome

    def _next(self, pipe: Connection, waiting: list[Cell]) -> None:
        if waiting:
            self._has[pipe] = waiting.pop(0)
            _try_send(pipe, self._has[pipe])

    def _answer(self, pipe: Connection) -> Outcome:
        cell = self._has.pop(pipe)
        try:
            answer: Answer = pipe.recv()
        except (EOFError, OSError):  # the second: it ended within its answer
            self._workers[pipe].join()
            raise StudyError(
                f"the process that trained {cell.key} ended "
                f"(exit code {self._workers[pipe].exitcode}); what is finished is kept, and the "
                "same call goes on. A script that starts a study with jobs needs "
                "`if __name__ == '__main__':` around it"
            ) from None
        if isinstance(answer, Failure):
            said = answer.error if cell.key in answer.error else f"{_failed(cell)}: {answer.error}"
            raise StudyError(said) from _ThereError(answer.trace)
        return answer


def _try_send(pipe: Connection, what: object) -> None:
    try:
        pipe.send(what)
    except ConnectionError:
        return  # the missing answer tells


def _work(pipe: Connection, folder: Path) -> None:
    """A process: takes the plan, then cells until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the study's to answer
    threading.Thread(target=_end_with_the_study, daemon=True).start()
    try:
        packed = pipe.recv()
        while True:
            pipe.send(_answered(packed, pipe.recv(), folder))
    except (EOFError, ConnectionError):
        return


@functools.cache
def _unpacked(packed: bytes) -> Plan:
    try:
        plan: Plan = pickle.loads(packed)
    except Exception as error:
        raise StudyError(_unsent(error)) from error
    return plan


def _answered(packed: bytes, cell: Cell, folder: Path) -> Answer:
    try:
        return run_cell(_unpacked(packed), cell, folder)
    except StudyError as error:
        return Failure(str(error), traceback.format_exc())
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}", traceback.format_exc())


def _end_with_the_study() -> None:
    study = multiprocessing.parent_process()
    if study is not None:
        study.join()
        os._exit(1)
