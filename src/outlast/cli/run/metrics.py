"""`outlast metrics`: the metrics of a run as CSV, Parquet or an event file of TensorBoard."""

from __future__ import annotations

import csv
import io
import os
from typing import TYPE_CHECKING

import click

from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import json_option, run_argument, workspace_option
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import OutlastError, UsageError
from outlast.extras import install_hint
from outlast.runs.metrics import stitched

if TYPE_CHECKING:
    from outlast.app.types import Curves

_HEADER = ("step", "metric", "value", "at", "attempt")


@command(
    section="runs",
    progress="reading metrics",
    interrupt=READ_ONLY,
    json_text="list of points with `step`, `metric`, `value`, `at`, `attempt`",
)
@run_argument
@click.option("--csv", "csv_path", default="", metavar="FILE", help="Write a CSV file; `-` is stdout.")
@click.option("--parquet", "parquet_path", default="", metavar="FILE", help="Write a Parquet file.")
@click.option("--tensorboard", "folder", default="", metavar="FOLDER", help="Write an event file of TensorBoard.")
@json_option
@workspace_option
def metrics(run_name: str, csv_path: str, parquet_path: str, folder: str, as_json: bool, workspace_url: str) -> int:
    """Export the metrics of a run as one curve, without lost work."""
    chosen = [option for option in (csv_path, parquet_path, folder, "json" if as_json else "") if option]
    if len(chosen) > 1:
        raise UsageError("expected one of --csv, --parquet, --tensorboard and --json")
    workspace = find_workspace(workspace_url)
    run = workspace.find(run_name)
    curves = stitched(workspace.bucket, run, workspace.story(run).refresh())
    if as_json:
        import json

        click.echo(json.dumps([dict(zip(_HEADER, row, strict=True)) for row in _rows(curves)], indent=2))
        return 0
    if not curves.series:
        raise OutlastError(
            f"{run} has logged no metrics yet",
            hint="log them with `run.log(step, loss=…)`, or append lines of JSON to OUTLAST_METRICS_FILE",
        )
    if parquet_path:
        _write(parquet_path, _parquet(curves))
    elif folder:
        from outlast.runs.tensorboard import event_file

        os.makedirs(os.path.join(folder, run), exist_ok=True)
        # One file per run, replaced by each export: TensorBoard merges all files of a folder.
        _write(os.path.join(folder, run, "events.out.tfevents.0.outlast"), event_file(curves.series))
    elif csv_path not in ("", "-"):
        _write(csv_path, _csv(curves).encode())
    else:
        click.echo(_csv(curves), nl=False)
    return 0


def _rows(curves: Curves) -> list[tuple[int, str, float, float, int]]:
    rows = [(p.step, name, p.value, p.at, p.attempt) for name, points in curves.series.items() for p in points]
    return sorted(rows, key=lambda row: (row[0], row[1]))


def _csv(curves: Curves) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEADER)
    writer.writerows(_rows(curves))
    return text.getvalue()


def _parquet(curves: Curves) -> bytes:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as problem:
        raise OutlastError("--parquet needs pyarrow", hint=install_hint("outlast[parquet]")) from problem
    columns = list(zip(*_rows(curves), strict=True))
    body = io.BytesIO()
    parquet.write_table(pyarrow.table(dict(zip(_HEADER, columns, strict=True))), body)
    return body.getvalue()


def _write(path: str, body: bytes) -> None:
    try:
        with open(path, "wb") as file:
            file.write(body)
    except OSError as problem:
        raise UsageError(f"cannot write `{path}`: {problem.strerror}") from problem
    note(f"wrote {path}")
