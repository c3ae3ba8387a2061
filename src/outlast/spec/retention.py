"""`[retention]`: when ended runs are deleted, and what of them is kept."""

from __future__ import annotations

from typing import Any

from outlast.spec import quantity
from outlast.spec.reader import Reader, count, of, text
from outlast.spec.spec import RetentionSpec

_OUTPUTS = ("keep", "delete")


def read_retention(reader: Reader) -> RetentionSpec | None:
    """Read the table; None if it is absent. Without `older_than` the other fields have no meaning."""
    if not reader.table:
        return None
    if "older_than" not in reader.table:
        reader.wrong("older_than", 'missing: set the age of runs that are deleted, e.g. older_than = "30d"')
    found = RetentionSpec(
        older_than_s=reader.take("older_than", quantity.duration_s, 0.0),
        keep_best=reader.take("keep_best", count, 0),
        metric=reader.take("metric", goal, ""),
        keep_outputs=reader.take("outputs", _outputs, "delete") == "keep",
        failed=reader.take("failed", of(bool), False),
    )
    if bool(found.keep_best) != bool(found.metric) and not reader.problems:
        reader.wrong("keep_best", 'needs `metric` beside it, e.g. keep_best = 3 and metric = "min:loss"')
    reader.finish()
    return found


def goal(value: Any) -> str:
    """Read `min:NAME` or `max:NAME`."""
    order, _, name = text(value).strip().partition(":")
    if order not in ("min", "max") or not name.strip():
        raise ValueError(f"invalid metric {value!r}: expected `min:NAME` or `max:NAME`, such as `min:loss`")
    return f"{order}:{name.strip()}"


def _outputs(value: Any) -> str:
    if value not in _OUTPUTS:
        raise ValueError(f"invalid value {value!r}: expected `keep` or `delete`")
    return str(value)
