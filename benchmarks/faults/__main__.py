"""`python -m benchmarks.faults`: plants faults, asks the rules, prints how often they are right."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.faults.faults import FAULTS
from benchmarks.faults.run import HEALTHY, Job, one
from benchmarks.faults.tabulate import table


def jobs(rules: Sequence[str], seeds: range, per_rule: int, healthy: int) -> list[Job]:
    """Which runs to make, healthy ones and faults mixed, so that a part of them is a sample.

    Raises:
        ValueError: there are more runs asked for than seeds.
    """
    if max(per_rule if rules else 0, healthy) > len(seeds):
        raise ValueError(f"{len(seeds)} seeds are too few")
    found = [(code, seed) for code in rules for seed in seeds[:per_rule]]
    found += [(HEALTHY, seed) for seed in seeds[:healthy]]
    return sorted(found, key=lambda job: (job[1], job[0]))


def main(arguments: list[str] | None = None) -> None:
    """Makes the runs that the file does not hold yet, and prints the table of all it holds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--seeds", default="0:10000", metavar="A:B", help="first:after the last")
    parser.add_argument("--rules", help="codes, with commas between; all unless told; or none")
    parser.add_argument("--per-rule", type=int, default=40)
    parser.add_argument("--healthy", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--resume", type=Path, help="a file of results, to be added to")
    given = parser.parse_args(arguments)
    first, after = (int(part) for part in given.seeds.split(":"))
    rules = sorted(FAULTS) if given.rules is None else [r for r in given.rules.split(",") if r]
    if unknown := sorted(set(rules) - FAULTS.keys()):
        parser.error(f"nothing to plant for {', '.join(unknown)}; there is {', '.join(FAULTS)}")
    wanted = jobs(rules, range(first, after), given.per_rule, given.healthy)
    rows = _read(given.resume)
    known = {(row["task"], row["seed"]) for row in rows}
    rest = [job for job in wanted if job not in known]
    rows = [row for row in rows if (row["task"], row["seed"]) in set(wanted)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, mp_context=context) as pool:
        for done, coming in enumerate(as_completed([pool.submit(one, job) for job in rest]), 1):
            row = coming.result()
            rows.append(row)
            if given.resume is not None:
                with given.resume.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            print(f"{done} of {len(rest)}", end="\r", file=sys.stderr, flush=True)
    print(table(rows))


def _read(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
