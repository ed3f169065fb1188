"""What a rule may ask for by name: measures, and the facts listed here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from skipscope.history import History, Table
from skipscope.rule.gates import Gate, NotMeasurable, warmup
from skipscope.rule.siblings import stages


class Inputs:
    """The inputs of the rules: given values first, then facts derived, then a history's tables.

    >>> Inputs({"patience": 1})["patience"]
    1
    """

    def __init__(self, given: Mapping[str, Any], history: History | None = None) -> None:
        self.history = history
        self._held = dict(given)

    def __getitem__(self, name: str) -> Any:
        """The input `name`.

        Raises:
            NotMeasurable: it is not there, or nothing of it was measured.
        """
        if name not in self._held:
            self._held[name] = self._look_up(name)
        value = self._held[name]
        if isinstance(value, NotMeasurable):
            raise NotMeasurable(*value.args)  # a new one: what is raised holds on to its callers
        if isinstance(value, Table) and (not value.missing.size or value.missing.all()):
            raise NotMeasurable(f"needs {value.label}: {self._why_absent(value)}")
        return value

    def get(self, name: str) -> Any:
        """The input `name`, None where it is not there."""
        try:
            return self[name]
        except NotMeasurable:
            return None

    def _look_up(self, name: str) -> Any:
        try:
            if name in FACTS:
                return FACTS[name](self)
            if self.history is not None:
                return self.history.table(name)
        except NotMeasurable as absent:
            return NotMeasurable(*absent.args)
        return NotMeasurable(f"needs {name.replace('_', ' ')}, which is not recorded")

    def _why_absent(self, table: Table) -> str:
        if not len(table.steps):
            return "nothing was recorded yet"
        return "nothing to measure it on" if not table.columns else "never measured in this run"


def _history(inputs: Inputs) -> History:
    if inputs.history is None:
        raise NotMeasurable("needs a history")
    return inputs.history


#: What a rule may ask for beside the measures. Derived ones come from other inputs.
FACTS: Mapping[str, Callable[[Inputs], Any]] = {
    "sites": lambda inputs: _history(inputs).sites,
    "parameters": lambda inputs: _history(inputs).parameters,
    "groups": lambda inputs: _history(inputs).groups,
    "run": lambda inputs: _history(inputs).run,
    "captures": lambda inputs: _history(inputs).capture_steps,  # steps, (captures,)
    "have": lambda inputs: _history(inputs).have,  # HAVE_* bits, (captures, sites)
    "why": lambda inputs: _history(inputs).why,  # positions in REASONS, (captures, sites)
    "modules": lambda inputs: inputs["sites"].modules,
    "stages": lambda inputs: stages(inputs["sites"]),
    "warmup": lambda inputs: warmup(
        inputs["lr"], inputs.get("skipped"), inputs.get("groups") or ()
    ),
    "gate": lambda _: Gate(),  # replaced by the rule's own
}
