"""Field readers for untyped tables. They collect every problem, so that one error reports all of them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

_KINDS = {str: "text", bool: "true or false", int: "a whole number", dict: "a table", list: "a list"}


class Reader:
    """The reader of one table. `finish` reports fields that no code has read as unknown."""

    def __init__(self, table: Mapping[str, Any], *, section: str = "", problems: list[str] | None = None) -> None:
        self.table = table
        self.section = section
        self.problems: list[str] = problems if problems is not None else []
        self._known: set[str] = set()

    def name(self, field: str) -> str:
        return f"[{self.section}] {field}" if self.section else field

    def wrong(self, field: str, reason: str) -> None:
        self.problems.append(f"{self.name(field)}: {reason}")

    def take(self, field: str, read: Callable[[Any], T], default: T) -> T:
        """Return the field as parsed by `read`, which raises ValueError; the default if it is absent or invalid."""
        self._known.add(field)
        if field not in self.table:
            return default
        try:
            return read(self.table[field])
        except ValueError as problem:
            self.wrong(field, str(problem))
            return default

    def section_of(self, field: str) -> Reader:
        """Return the reader of a nested table; an empty one if the field is absent or not a table."""
        table: dict[str, Any] = self.take(field, of(dict), {})
        return Reader(table, section=field, problems=self.problems)

    def finish(self) -> None:
        """Report unknown fields, each with the most similar known one."""
        for field in self.table:
            if field in self._known:
                continue
            near = difflib.get_close_matches(str(field), self._known, n=1)
            hint = f"; did you mean `{near[0]}`?" if near else f"; known here: {', '.join(sorted(self._known))}"
            self.wrong(field, f"unknown field{hint}")


def of(kind: type[T]) -> Callable[[Any], T]:
    """Return a reader that accepts this type only. A bool does not count as a number."""

    def read(value: Any) -> T:
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise ValueError(f"expected {_KINDS.get(kind, kind.__name__)}, got {value!r}")
        return value

    return read


def text(value: Any) -> str:
    """Read a text that is not blank."""
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {value!r}")
    if not value.strip():
        raise ValueError("must not be empty")
    return value


def texts(value: Any) -> tuple[str, ...]:
    """Read a list of texts; a single text counts as a list of one."""
    if isinstance(value, str):
        return (text(value),)
    if not isinstance(value, list):
        raise ValueError(f"expected a list of texts, got {value!r}")
    return tuple(text(item) for item in value)


def count(value: Any) -> int:
    """Read an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"expected a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"expected a whole number of at least 1, got {value}")
    return value


def amount(value: Any) -> float:
    """Read a number above zero."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, got {value!r}")
    if not 0 < value < float("inf"):
        raise ValueError(f"expected a number above zero, got {value}")
    return float(value)
