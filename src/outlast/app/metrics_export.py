"""The metrics of a run for other programs: rows, CSV, Parquet and event files of TensorBoard."""

from __future__ import annotations

import csv
import io

from outlast.errors import OutlastError
from outlast.extras import install_hint
from outlast.runs.metrics import Curves

HEADER = ("step", "metric", "value", "at", "attempt")


def rows_of(curves: Curves) -> list[tuple[int, str, float, float, int]]:
    rows = [(p.step, name, p.value, p.at, p.attempt) for name, points in curves.series.items() for p in points]
    return sorted(rows, key=lambda row: (row[0], row[1]))


def as_csv(curves: Curves) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(rows_of(curves))
    return text.getvalue()


def as_parquet(curves: Curves) -> bytes:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as problem:
        raise OutlastError("a Parquet file needs pyarrow", hint=install_hint("outlast[parquet]")) from problem
    columns = list(zip(*rows_of(curves), strict=True))
    body = io.BytesIO()
    parquet.write_table(pyarrow.table(dict(zip(HEADER, columns, strict=True))), body)
    return body.getvalue()


def as_event_file(curves: Curves) -> bytes:
    """Return an event file of TensorBoard."""
    from outlast.runs.tensorboard import event_file

    return event_file(curves.series)
