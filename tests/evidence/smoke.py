"""The study that the page on verdicts goes through: `skipscope study --smoke --seeds 3`.

Its files are kept in one, a line each; the page shows what the command printed of them. After the
study or the verdict has changed, both are written anew:

    skipscope study --smoke --seeds 3 --output FOLDER
    python -m tests.evidence.smoke FOLDER
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from skipscope.evidence import console, judge
from skipscope.evidence.outcome import Cell
from skipscope.evidence.store import CELLS, OUTCOME, STUDY, cell_folder, load

KEPT = Path(__file__).with_name("smoke.jsonl")
PAGE = Path(__file__).parents[2] / "docs" / "reading-a-verdict.md"
SHOWN = re.compile(
    r"(?<=<!-- verdict: smoke -->\n```text\n).*?(?=```\n<!-- /verdict -->)", re.DOTALL
)


def unpacked(folder: Path) -> Path:
    """The study as a folder again; its histories are not kept."""
    study, *outcomes = KEPT.read_text(encoding="utf-8").splitlines()
    (folder / STUDY).write_text(study, encoding="utf-8")
    for line in outcomes:
        own = cell_folder(folder, Cell(**json.loads(line)["cell"]))
        own.mkdir(parents=True)
        (own / OUTCOME).write_text(line, encoding="utf-8")
    return folder


def _pack(folder: Path) -> None:
    files = [folder / STUDY, *sorted(folder.glob(f"{CELLS}/*/{OUTCOME}"))]
    lines = [json.dumps(json.loads(path.read_text(encoding="utf-8"))) for path in files]
    KEPT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    evidence = load(folder)
    shown = console(evidence, judge(evidence)).split("\ntraining\n")[0]
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(SHOWN.sub(lambda _: shown, page), encoding="utf-8")


if __name__ == "__main__":
    _pack(Path(sys.argv[1]))
