"""Write one page a rule from the rules' docstrings, and their index.

python docs/generate_rules.py           # write docs/rules/
python docs/generate_rules.py --check   # exit 1 when a page is out of date
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from skipscope.rule import Rule
from skipscope.rule.docs import sections
from skipscope.rules import RULES

FOLDER = Path(__file__).parent / "rules"
NOTE = "<!-- Written by docs/generate_rules.py from the rule's docstring. -->\n"


def page(rule: Rule) -> str:
    """The page of one rule."""
    parts = [f"{NOTE}\n# {rule.code} {rule.name}\n\n{rule.title}.\n\nSeverity: {rule.severity}"]
    for heading, text in sections(rule.doc).items():
        body = thresholds(rule, text) if heading == "Thresholds" else text
        parts.append(f"## {heading}\n\n{body}")
    return "\n\n".join(parts) + "\n"


def thresholds(rule: Rule, text: str) -> str:
    """The thresholds as a table, as `thresholds={code: {...}}` takes them."""
    if not rule.thresholds:
        return text
    items = re.split(r"^(\w+): ", text, flags=re.MULTILINE)[1:]
    meaning = {
        name: " ".join(words.split()) for name, words in zip(items[::2], items[1::2], strict=True)
    }
    rows = [
        f"| `{name}` | {value:g} | {meaning.get(name, '')} |"
        for name, value in rule.thresholds.items()
    ]
    return "\n".join(["| name | default | meaning |", "|---|---|---|", *rows])


def index() -> str:
    """The table of all rules, in their order."""
    rows = [
        f"| [{rule.code}]({rule.code}.md) | {rule.name} | {rule.severity} | {rule.title} |"
        for rule in RULES.values()
    ]
    table = "\n".join(["| code | name | severity | finds |", "|---|---|---|---|", *rows])
    tree = "\n".join(["```{toctree}", ":hidden:", "", *RULES, "```"])
    return f"{NOTE}\n# Rules\n\n{table}\n\n{tree}\n"


def main() -> int:
    """Write or check all pages; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    pages = {f"{code}.md": page(rule) for code, rule in RULES.items()} | {"index.md": index()}
    FOLDER.mkdir(exist_ok=True)
    present = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    changed = sorted(n for n in pages.keys() | present.keys() if pages.get(n) != present.get(n))
    if check:
        for name in changed:
            print(f"docs/rules/{name} is out of date: run python docs/generate_rules.py")
        return bool(changed)
    for name in changed:
        if name in pages:
            (FOLDER / name).write_text(pages[name], encoding="utf-8")
        else:
            (FOLDER / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
