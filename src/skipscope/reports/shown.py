"""Numbers that show themselves: as a page on a console or in Markdown, or as JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, ClassVar, Generic, TypeVar

from skipscope.reports.parts import Part, console, markdown
from skipscope.reports.strict import dumps

Held = TypeVar("Held")  #: a dataclass


class Shown(ABC, Generic[Held]):
    """The numbers, and how they are shown: `str` gives the console's form."""

    schema: ClassVar[str]  #: name and version of the JSON form

    def __init__(self, numbers: Held) -> None:
        self.numbers = numbers

    def __str__(self) -> str:
        """The console's form, 80 columns wide."""
        return self.report()

    def report(self, form: str = "console", **settings: Any) -> str:
        """As text: "console" (width, color, unicode), "markdown" (unicode) or "json".

        Raises:
            ValueError: there is no such form.
        """
        if form == "json":
            return dumps({"schema": self.schema, **asdict(self.numbers)})  # type: ignore[call-overload]
        if form == "markdown":
            return markdown(self._parts(whole=True), **settings)
        if form == "console":
            return console(self._parts(whole=False), **settings)
        raise ValueError(f"report: there is no form {form!r}, only console, markdown, json")

    @abstractmethod
    def _parts(self, *, whole: bool) -> Iterable[Part]:
        """What the page is made of: all, or what a console has room for."""
