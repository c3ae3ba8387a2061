"""`outlast metrics`: the metrics of a run as CSV, Parquet or an event file of TensorBoard."""

from __future__ import annotations

import os

import click

from outlast.app.metrics import curves_of, require_curves
from outlast.app.metrics_export import HEADER, as_csv, as_event_file, as_parquet, rows_of
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import json_option, run_argument, workspace_option
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import UsageError


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
    curves = curves_of(workspace, run)
    if as_json:
        import json

        click.echo(json.dumps([dict(zip(HEADER, row, strict=True)) for row in rows_of(curves)], indent=2))
        return 0
    require_curves(curves, run)
    if parquet_path:
        _write(parquet_path, as_parquet(curves))
    elif folder:
        os.makedirs(os.path.join(folder, run), exist_ok=True)
        # One file per run, replaced by each export: TensorBoard merges all files of a folder.
        _write(os.path.join(folder, run, "events.out.tfevents.0.outlast"), as_event_file(curves))
    elif csv_path not in ("", "-"):
        _write(csv_path, as_csv(curves).encode())
    else:
        click.echo(as_csv(curves), nl=False)
    return 0


def _write(path: str, body: bytes) -> None:
    try:
        with open(path, "wb") as file:
            file.write(body)
    except OSError as problem:
        raise UsageError(f"cannot write `{path}`: {problem.strerror}") from problem
    note(f"wrote {path}")
