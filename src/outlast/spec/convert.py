"""What becomes of another tool's file: what is refused, what is done otherwise, what is left out. No IO."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from outlast.errors import SpecError
from outlast.spec.fields import name as checked_name
from outlast.spec.reader import Reader

_SHOWN_MAX = 60


class Findings:
    """What is told about a file while it is read: nothing of it may vanish without a word."""

    def __init__(self) -> None:
        # What makes the file one that cannot be taken over; all of them are told at once.
        self.problems: list[str] = []
        # What is done in another way than the file says.
        self.otherwise: list[str] = []
        # What has no counterpart, and is missing from the result.
        self.left_out: list[str] = []

    def section(self, table: Mapping[str, Any], where: str = "") -> Section:
        return Section(table, where, self)

    def refuse(self, *, source: str, hint: str) -> None:
        """Raise if something cannot be taken over."""
        if self.problems:
            raise SpecError(self.problems, source=source, hint=hint)


class Section:
    """One table of the file. What nobody took by the end is named as left out."""

    def __init__(self, table: Mapping[str, Any], where: str, findings: Findings) -> None:
        self.where = where
        self.findings = findings
        self._reader = Reader(table, problems=findings.problems)
        self.table = table
        self._taken: set[str] = set()

    def name(self, field: str) -> str:
        return f"{self.where}.{field}" if self.where else field

    def take(self, field: str) -> Any:
        """The value, taken note of; None if it is not there."""
        self._taken.add(field)
        return self.table.get(field)

    def wrong(self, field: str, why: str) -> None:
        self.findings.problems.append(f"{self.name(field)}: {why}")

    def otherwise(self, field: str, how: str) -> None:
        self.findings.otherwise.append(f"{self.name(field)}: {how}")

    def left_out(self, field: str, why: str) -> None:
        self.findings.left_out.append(f"{self.name(field)}: {why}")

    def drop(self, reasons: Mapping[str, str]) -> None:
        """Fields that are known and have no counterpart, each with its reason."""
        for field, why in reasons.items():
            if self.take(field) not in (None, "", [], {}):
                self.left_out(field, why)

    def finish(self, tool: str) -> None:
        for field in self.table:
            if field not in self._taken:
                self.left_out(str(field), f"is no field of {tool} that is known here")


def shown(value: Any) -> str:
    """A value for a sentence, cut to a length that a terminal bears."""
    text = repr(value) if not isinstance(value, Mapping | list) else type(value).__name__
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def name_from(section: Section, field: str, default: str) -> str:
    """The name as runs may have it."""
    given = section.take(field)
    if given is None:
        return default
    if not isinstance(given, str):
        section.wrong(field, f"expected text, got {shown(given)}")
        return default
    plain = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")[:30].strip("-")
    if not plain or not plain[0].isalpha():
        plain = f"run-{plain}".strip("-")
    checked_name(plain)
    if plain != given:
        section.otherwise(field, f"`{given[:_SHOWN_MAX]}` is called `{plain}`")
    return plain
