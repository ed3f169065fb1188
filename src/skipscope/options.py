"""What a user can set, validated once, for the plain loop and the Lightning callback alike."""

from __future__ import annotations

import numbers
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

from skipscope.names import check_list

Preset = Literal["train", "debug"]
UpdateDetail = Literal["blocks", "parameters", "off"]
OnCompile = Literal["auto", "eager", "skip"]
OnError = Literal["disable", "raise"]
ReportFormat = Literal["console", "markdown", "json"]

_CHOICES = {
    "preset": get_args(Preset),
    "updates": get_args(UpdateDetail),
    "on_compile": get_args(OnCompile),
    "on_error": get_args(OnError),
}


@dataclass(frozen=True)
class Options:
    """Settings of a monitor.

    Args:
        every_n_steps: optimizer steps between captures once the first ones (0, 1, 2, 4 ... 32) are
            taken; each epoch gets at least three.
        preset: "train", or "debug" to record every step.
        sites: module paths (with `*` and `?`) or class names; only additions inside these are
            measured; of a site's name its module counts. A named module without a visible addition
            is watched as a whole (shortcut = its input).
        exclude: module paths or class names to leave out.
        select: codes of the rules to run; None runs all.
        ignore: codes of rules not to run.
        thresholds: rule code -> threshold name -> value, instead of the rule's default.
        updates: detail of parameter curves in loggers; "off" measures no updates at all.
        update_bytes: memory for copies of parameters around an optimizer step; a larger model is
            measured block by block in turn, and the report says how much of it.
        dirpath: where history and reports are written; None keeps them in memory (the Lightning
            callback then uses the logger's directory).
        report: which forms of the report to make at the end of an epoch.
        report_every_n_epochs: epochs between reports.
        on_compile: on captured steps run a compiled model eagerly ("eager"), or "skip" them; "auto"
            skips them where the model uses flex_attention, which needs far more memory eagerly.
        on_error: "disable" turns the monitor off after an error of its own; "raise" is for tests.
        name: tells monitors of one run apart.

    Raises:
        ValueError: a value is out of range; the message names the argument.
    """

    every_n_steps: int = 50
    preset: Preset = "train"
    sites: Sequence[str] | None = None
    exclude: Sequence[str] | None = None
    select: Sequence[str] | None = None
    ignore: Sequence[str] | None = None
    thresholds: Mapping[str, Mapping[str, float]] | None = None
    updates: UpdateDetail = "blocks"
    update_bytes: int = 2**30
    dirpath: str | None = None
    report: Sequence[ReportFormat] = ("console", "markdown", "json")
    report_every_n_epochs: int = 1
    on_compile: OnCompile = "auto"
    on_error: OnError = "disable"
    name: str = "skipscope"

    def __post_init__(self) -> None:
        for argument in ("every_n_steps", "report_every_n_epochs"):
            value = getattr(self, argument)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{argument} must be a whole number of 1 or more, got {value!r}")
        self._check_bytes()
        for argument, choices in _CHOICES.items():
            value = getattr(self, argument)
            if value not in choices:
                raise ValueError(f"{argument} must be one of {', '.join(choices)}, got {value!r}")
        for argument in ("sites", "exclude", "select", "ignore", "report"):
            if getattr(self, argument) is not None or argument == "report":
                check_list(argument, getattr(self, argument))
        if self.sites is not None and not self.sites:
            raise ValueError(
                f"sites must name something, got {self.sites!r}: nothing would be measured; None "
                "stands for all"
            )
        unknown = [form for form in self.report if form not in get_args(ReportFormat)]
        if unknown:
            known = ", ".join(get_args(ReportFormat))
            raise ValueError(f"report must list formats among {known}, got {unknown[0]!r}")
        self._check_names()

    def _check_bytes(self) -> None:
        given: object = self.update_bytes
        number = isinstance(given, numbers.Real) and not isinstance(given, bool)
        if not number or not self.update_bytes >= 0:  # NaN is neither
            raise ValueError(
                f"update_bytes must be a number of bytes, 0 or more, got {given!r}; "
                'updates="off" measures no updates'
            )

    def _check_names(self) -> None:
        path: object = self.dirpath
        if path is not None and not (isinstance(path, (str, os.PathLike)) and str(path).strip()):
            raise ValueError(f"dirpath must be a path, got {path!r}; None keeps all in memory")
        if "\0" in str(path):
            raise ValueError(f"dirpath must be a path without NUL, got {path!r}")
        if not isinstance(self.name, str):
            raise ValueError(f"name must be a string, got {self.name!r}")
        if not self.name or not all(c.isalnum() or c in "_.-" for c in self.name):
            raise ValueError(f"name must be letters, digits and any of _ . -, got {self.name!r}")

    def __repr__(self) -> str:
        changed = (
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        )
        return f"Options({', '.join(changed)})"
