"""Write one page a rule from the rules' declarations and docstrings, their index and inputs.

python docs/generate_rules.py           # write docs/rules/
python docs/generate_rules.py --check   # exit 1 when a page is out of date
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from skipscope.measure import PARAMETER_NEEDS, SITE_NEEDS
from skipscope.measures import MEASURES
from skipscope.records import (
    HAVE_FORWARD,
    HAVE_GRAD,
    HAVE_GRADIENT,
    HAVE_INPUT,
    HAVE_INPUT_GRAD,
    HAVE_SPLIT,
    HAVE_UPDATE,
    HAVE_WEIGHT,
)
from skipscope.rule import Rule
from skipscope.rule import docs as rule_docs
from skipscope.rules import RULES

FOLDER = Path(__file__).parent / "rules"
NOTE = "<!-- Written by docs/generate_rules.py from the rules. -->\n"

MAP, FORWARD, GRADIENT, SPLIT = "site map", "forward", "gradient", "split"
TABLE, WEIGHTS, UPDATES, STEPS, RUN = "parameters", "weights", "updates", "steps", "run"
#: Where an input comes from: the columns of the matrix, each with what has to be recorded.
SOURCES = {
    MAP: "sites, streams, called modules: what discovery knows of the model",
    FORWARD: "sums of shortcut, branch, sum and block input at captured steps",
    GRADIENT: "gradients at the sum and at the block's input at captured steps",
    SPLIT: "the gradient's shares through shortcut and branch at captured steps",
    TABLE: "names, shapes and optimizer groups of the parameters",
    WEIGHTS: "size of each parameter and of its gradient, on the steps of the updates schedule",
    UPDATES: "what the optimizer's step did to each parameter, on the same steps",
    STEPS: "loss, learning rates, skipped steps and times of each step",
    RUN: "facts about the run: fresh or resumed, preset, which steps were captured and why not",
}
SITE_BITS = {
    HAVE_FORWARD: FORWARD,
    HAVE_INPUT: FORWARD,
    HAVE_GRAD: GRADIENT,
    HAVE_INPUT_GRAD: GRADIENT,
    HAVE_SPLIT: SPLIT,
}
PARAMETER_BITS = {HAVE_WEIGHT: WEIGHTS, HAVE_GRADIENT: WEIGHTS, HAVE_UPDATE: UPDATES}
#: Inputs that are no measures, by where they come from; `gate` is the rule's own.
OF_FACTS = {
    "sites": MAP,
    "modules": MAP,
    "stages": MAP,
    "parameters": TABLE,
    "groups": TABLE,
    "warmup": STEPS,
    "run": RUN,
    "captures": RUN,
    "have": RUN,
    "why": RUN,
    "gate": "",
}
NEEDED, OPTIONAL = "needs", "may"


def page(rule: Rule) -> str:
    """The page of one rule."""
    parts = [f"{NOTE}\n# {rule.code} {rule.name}\n\n{rule.title}.\n\nSeverity: {rule.severity}"]
    for heading, text in rule_docs.sections(rule.doc).items():
        if heading == "Thresholds":
            parts.append(f"## Inputs\n\n{inputs(rule)}")
        body = thresholds(rule, text) if heading == "Thresholds" else text
        parts.append(f"## {heading}\n\n{body}")
    return "\n\n".join(parts) + "\n"


def thresholds(rule: Rule, text: str) -> str:
    """The thresholds as a table, as `thresholds={code: {...}}` takes them."""
    rows = [
        f"| `{name}` | {value:g} | {meaning} |"
        for name, value, meaning in rule_docs.thresholds(text, rule.defaults)
    ]
    table = "\n".join(["| name | default | meaning |", "|---|---|---|", *rows])
    return table if rule.thresholds else f"{text}\n\n{table}"


def sources(name: str) -> tuple[str, ...]:
    """Where an input comes from, as columns of the matrix."""
    if name in OF_FACTS:
        return tuple(filter(None, [OF_FACTS[name]]))
    measure = MEASURES[name]
    if measure.axis == "step":
        return (STEPS,)
    of_site = measure.axis in ("site", "stream", "stage")
    needs, names = (SITE_NEEDS, SITE_BITS) if of_site else (PARAMETER_NEEDS, PARAMETER_BITS)
    bits = sum({bit for field in measure.inputs for bit in names if needs.get(field, 0) & bit})
    found = {column for bit, column in names.items() if bits & bit}
    if found > {FORWARD}:
        found -= {FORWARD}  # no gradient without one
    return tuple(column for column in SOURCES if column in found)


def inputs(rule: Rule) -> str:
    """The inputs of one rule as a table."""
    rows = [
        f"| {_named(name)} | {', '.join(sources(name))} | {_wanted(rule, name)} |"
        for name in rule.inputs
        if name != "gate"
    ]
    head = ["| input | comes from | the rule |", "|---|---|---|"]
    foot = "What each of them is: [Inputs](inputs.md)."
    return "\n".join([*head, *rows]) + f"\n\n{foot}"


def _named(name: str) -> str:
    return f"[`{name}`](../measures.md)" if name in MEASURES else f"`{name}`"


def _wanted(rule: Rule, name: str) -> str:
    return "can do without" if name in rule.optional else "needs it"


def matrix() -> str:
    """The page of all inputs: rules by source, then rules by input."""
    marks = {rule.code: _marks(rule) for rule in RULES.values()}
    read = [name for name in SOURCES if any(marks[code][name] for code in marks)]
    words = "\n".join(f"* *{name}*: {SOURCES[name]}" for name in read)
    head = [f"| rule | {' | '.join(read)} |", "|---|" + ":-:|" * len(read)]
    rows = [
        f"| [{code}]({code}.md) {RULES[code].name} | {' | '.join(mark[n] for n in read)} |"
        for code, mark in marks.items()
    ]
    readers: dict[str, list[str]] = {}
    for rule in RULES.values():
        for name in rule.inputs:
            mark = "?" if name in rule.optional else ""
            readers.setdefault(name, []).append(f"[{rule.code}]({rule.code}.md){mark}")
    ordered = [name for name in (*OF_FACTS, *MEASURES) if name in readers and name != "gate"]
    by_input = [
        f"| {_named(name)} | {', '.join(sources(name))} | {', '.join(readers[name])} |"
        for name in ordered
    ]
    return "\n".join([
        f"{NOTE}\n# Inputs\n",
        "What each rule reads. A rule says under *skipped* what it needs and was not recorded.",
        "What it can do without makes its finding poorer, or closes one of its arms.",
        f"\n{words}\n\n## Rules by source\n",
        f"*{NEEDED}*: nothing is judged without it. *{OPTIONAL}*: read where it is there.\n",
        *head, *rows,
        "\n## Rules by input\n\nA question mark stands behind a rule that can do without it.\n",
        "| input | comes from | read by |", "|---|---|---|", *by_input, "",
    ])  # fmt: skip


def _marks(rule: Rule) -> Mapping[str, str]:
    """For each source how a rule stands to it."""
    marks = dict.fromkeys(SOURCES, "")
    for name in rule.inputs:
        for column in sources(name):
            if name not in rule.optional:
                marks[column] = NEEDED
            marks[column] = marks[column] or OPTIONAL
    return marks


def index() -> str:
    """The table of all rules, in their order."""
    rows = [
        f"| [{rule.code}]({rule.code}.md) | {rule.name} | {rule.severity} | {rule.title} |"
        for rule in RULES.values()
    ]
    table = "\n".join(["| code | name | severity | finds |", "|---|---|---|---|", *rows])
    tree = "\n".join(["```{toctree}", ":hidden:", "", "inputs", *RULES, "```"])
    more = "What each of them reads: [Inputs](inputs.md)."
    return f"{NOTE}\n# Rules\n\n{table}\n\n{more}\n\n{tree}\n"


def main() -> int:
    """Write or check all pages; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    pages = {f"{code}.md": page(rule) for code, rule in RULES.items()}
    pages |= {"index.md": index(), "inputs.md": matrix()}
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
