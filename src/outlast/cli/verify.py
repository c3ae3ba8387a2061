"""`outlast verify`: proves outlast on a cloud account for cents, in fifteen steps, and leaves nothing behind."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from outlast.app.verification import accounts, bucket_of, clean_up, new_verification, recording
from outlast.cli.shared.command import command
from outlast.cli.shared.options import parse_option
from outlast.cli.shared.terminal import note
from outlast.errors import OutlastError, UsageError
from outlast.spec import quantity

if TYPE_CHECKING:
    from outlast.app.types import Runner, VerifyReport, VerifyResult

_INTERRUPT = "stopped; `outlast verify --clean all` deletes what may be left"


@command(
    section="start",
    interrupt=_INTERRUPT,
    progress="",
    json_text="a report: `steps` with `name`, `result` and `text`, the cost, and the leftovers",
)
@click.option("--cloud", "cloud_name", required=True, type=click.Choice(accounts()), help="The cloud.")
@click.option("--gpu", metavar="KIND", help="Use machines with a GPU: T4 or L4:1.")
@click.option("--region", default="", metavar="NAME", help="Region of the machines (the cheapest).")
@click.option("--max-usd", default=0.25, metavar="USD", help="Stop when the machines have cost this much (0.25).")
@click.option("--bucket", default="", metavar="URL", help="Bucket for the workspace (that of `outlast setup`).")
@click.option("--dry", is_flag=True, help="Only the first five steps: they create no machine.")
@click.option("--json", "json_path", default="", metavar="FILE", help="Write the report to a file; `-` prints it.")
@click.option(
    "--clean", "clean_id", default="", metavar="ID", help="Delete what a verification left: its id, or `all`."
)
@click.option("--record", "record_folder", default="", metavar="DIR", help="Save the cloud's answers, scrubbed.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before machines are launched.")
def verify(
    cloud_name: str,
    gpu: str | None,
    region: str,
    max_usd: float,
    bucket: str,
    dry: bool,
    json_path: str,
    clean_id: str,
    record_folder: str,
    yes: bool,
) -> int:
    """Prove outlast on your own cloud account, for cents.

    Fifteen steps: identity, rights, network, bucket, prices; then machines that run, are preempted, killed and cleaned
    up. Each prints `ok`, `FAIL` or `skipped`. Everything that was created is deleted, also after Ctrl-C.
    """
    kind, count = parse_option("--gpu", gpu, quantity.gpu_count, ("", 0))
    where = bucket_of(cloud_name, bucket)
    if clean_id:
        return _clean(clean_id, where, cloud_name)
    runner = new_verification(
        cloud_name,
        where,
        region=region,
        gpu=kind,
        gpus=count,
        max_usd=max_usd,
        report=note,
        done=_print,
    )
    with recording(runner, record_folder):
        _run(runner, dry=dry, yes=yes)
    return _finish(runner.summary(), json_path)


def _run(runner: Runner, *, dry: bool, yes: bool) -> None:
    runner.dry()
    if dry:
        return
    if runner.dry_failed or runner.offer is None:
        runner.skip_rest(f"fix {', '.join(runner.dry_failed)} first")
        return
    text = f"the machines cost about ${runner.estimate_usd:.3f}, and at most ${runner.max_usd:.2f}"
    if runner.estimate_usd > runner.max_usd:
        runner.skip_rest(f"{text}: raise --max-usd")
        return
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                f"cannot ask without a terminal: {text}", hint="repeat the command with --yes, or with --dry"
            )
        from outlast.cli.shared.progress import confirm

        if not confirm(f"{text}. Launch them?"):
            runner.skip_rest("declined")
            return
    runner.live()


def _clean(id: str, bucket: str, cloud_name: str) -> int:
    found = False
    for name, text in clean_up(id, cloud_name, bucket, report=note):
        found = True
        click.echo(f"{name}: {text}")
    if not found:
        note(f"nothing to delete: no verification of {cloud_name} is recorded here or in {bucket}")
    return 0


def _print(result: VerifyResult) -> None:
    request = f"  [request {result.request}]" if result.request else ""
    click.echo(f"{result.state:<8}{result.step:<18} {result.text}{request}")
    if result.fix:
        click.echo(f"{'':<27}fix: {result.fix}")


def _finish(report: VerifyReport, json_path: str) -> int:
    import msgspec

    if json_path:
        text = json.dumps(msgspec.to_builtins(report), indent=2)
        if json_path == "-":
            click.echo(text)
        else:
            with open(json_path, "w", encoding="utf-8") as file:
                file.write(text + "\n")
    if report.failed:
        failed = ", ".join(one.step for one in report.steps if one.state == "FAIL")
        raise OutlastError(f"{report.cloud} failed: {failed}", hint="each failed step names the fix")
    return 0


def run_dry(cloud_name: str, bucket: str, done: Callable[[VerifyResult], None] = _print) -> bool:
    """Run the steps without machines, at the end of `outlast setup --apply`; return whether all passed."""
    runner = new_verification(cloud_name, bucket, report=note, done=done)
    runner.dry()
    return not runner.dry_failed
