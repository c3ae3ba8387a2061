"""The conversion of other tools' files: problems, differences and omissions. No IO."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from outlast.errors import SpecError
from outlast.spec.fields import name as checked_name
from outlast.spec.reader import Reader

_SHOWN_MAX = 60


class Findings:
    """The remarks on a file. Every field that has no exact counterpart appears in one of the lists."""

    def __init__(self) -> None:
        # Reasons why the file cannot be converted.
        self.problems: list[str] = []
        # Fields that work differently.
        self.otherwise: list[str] = []
        # Fields without a counterpart, which the result omits.
        self.left_out: list[str] = []

    def section(self, table: Mapping[str, Any], where: str = "") -> Section:
        return Section(table, where, self)

    def refuse(self, *, source: str, hint: str) -> None:
        """Raise SpecError if the file cannot be converted."""
        if self.problems:
            raise SpecError(self.problems, source=source, hint=hint)


class Section:
    """One table of the file. `finish` lists fields that no code has read as left out."""

    def __init__(self, table: Mapping[str, Any], where: str, findings: Findings) -> None:
        self.where = where
        self.findings = findings
        self._reader = Reader(table, problems=findings.problems)
        self.table = table
        self._taken: set[str] = set()

    def name(self, field: str) -> str:
        return f"{self.where}.{field}" if self.where else field

    def take(self, field: str) -> Any:
        """Return the value and mark the field as read; None if it is absent."""
        self._taken.add(field)
        return self.table.get(field)

    def wrong(self, field: str, why: str) -> None:
        self.findings.problems.append(f"{self.name(field)}: {why}")

    def otherwise(self, field: str, how: str) -> None:
        self.findings.otherwise.append(f"{self.name(field)}: {how}")

    def left_out(self, field: str, why: str) -> None:
        self.findings.left_out.append(f"{self.name(field)}: {why}")

    def drop(self, reasons: Mapping[str, str]) -> None:
        """Leave out known fields without a counterpart, each with its reason."""
        for field, why in reasons.items():
            if self.take(field) not in (None, "", [], {}):
                self.left_out(field, why)

    def finish(self, tool: str) -> None:
        for field in self.table:
            if field not in self._taken:
                self.left_out(str(field), f"unknown field of {tool}")


def shown(value: Any) -> str:
    """Format a value for a message, shortened."""
    text = repr(value) if not isinstance(value, Mapping | list) else type(value).__name__
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def name_from(section: Section, field: str, default: str) -> str:
    """Return the name, changed to a valid name of a run."""
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
        section.otherwise(field, f"renamed from `{given[:_SHOWN_MAX]}` to `{plain}`")
    return plain
