"""What commands share: the workspace option, run names with completion, clouds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outlast.cli.terminal import find_workspace, note
from outlast.errors import OutlastError

if TYPE_CHECKING:
    from outlast.clouds.cloud import Cloud
    from outlast.workspace.workspace import Workspace

F = TypeVar("F", bound=Callable[..., Any])


def workspace_option(command: F) -> F:
    return click.option(
        "--workspace",
        "-w",
        "workspace_url",
        default="",
        metavar="WHERE",
        help="A folder, gs://… or s3://….",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def complete_run(ctx: click.Context, _param: click.Parameter, beginning: str) -> list[str]:
    try:
        runs = find_workspace(ctx.params.get("workspace_url", "")).runs()
    except OutlastError:
        return []
    return [run for run in [*runs, "last"] if run.startswith(beginning)]


def run_argument(command: F) -> F:
    return click.argument("run_name", metavar="RUN", shell_complete=complete_run)(command)


class Clouds(Mapping[str, "Cloud"]):
    """The clouds by name. Who goes through all of them meets only those that were named: others are not asked."""

    def __init__(self, names: Iterable[str] = (), *, own: bool = True) -> None:
        """`own`: this computer's, too."""
        self._made: dict[str, Cloud] = {}
        for name in ("local", *names) if own else names:
            self.get(name)

    def __getitem__(self, name: str) -> Cloud:
        if name not in self._made:
            self._made[name] = _make(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._made))

    def __len__(self) -> int:
        return len(self._made)


def _make(name: str) -> Cloud:
    """Raises KeyError."""
    if name == "local":
        from outlast.clouds.local.cloud import LocalCloud

        return LocalCloud()
    if name == "gcp":
        from outlast.clouds.gcp.cloud import GcpCloud

        return GcpCloud()
    if name == "aws":
        from outlast.clouds.aws.cloud import AwsCloud

        return AwsCloud()
    raise KeyError(name)


def tell_prices(cloud: object) -> None:
    """Say so where the prices that were shown are not the cloud's own of today."""
    if said := getattr(cloud, "price_note", ""):
        note(f"prices: {said}")


def clouds(workspace: Workspace | None = None) -> Mapping[str, Cloud]:
    """Every cloud that this installation can talk to; the workspace remembers which of them it has to do with."""
    return Clouds(workspace.clouds() if workspace is not None else ())
