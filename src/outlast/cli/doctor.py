"""`outlast doctor`: checks the set-up, and says what is missing and how to get it. Repairs nothing."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import Literal

import click
import msgspec

import outlast
from outlast.cli.shared.command import UNCHANGED, command
from outlast.cli.shared.options import clouds, json_option, workspace_option
from outlast.cli.shared.terminal import find_workspace
from outlast.errors import Exists, OutlastError, WorkspaceError
from outlast.spec.quantity import describe_s
from outlast.workspace import Workspace

_PYTHON_MIN = (3, 11)
# Below the first it is worth a word, below the second nothing works for long.
_FREE_GB_WARN, _FREE_GB_MIN = 2.0, 0.05
_CLOCK_S_MAX = 5.0
_THREADS = 16

_TOOLS = {
    "bash": "runs a `command` that is text, and `setup`; without it write `command` as a list of words",
    "git": "fetches `[code] git`, and records the commit and the uncommitted changes of your code",
    "ssh": "logs in to machines (`sync`, `attach`, `tunnel`), and fetches `[code] git` from git@host:repo",
    "rsync": "`outlast sync` copies with it",
    "tmux": "`outlast attach` shows terminals in it, on machines of the local cloud",
}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One row. An error makes outlast unusable here; a warning does not."""

    check: str
    state: Literal["ok", "warning", "error"]
    says: str
    fix: str = ""


@command(section="start", progress="checking", interrupt=UNCHANGED, json="DoctorReport")
@json_option
@workspace_option
def doctor(workspace_url: str, as_json: bool) -> int:
    """Check the set-up and report what is missing.

    Exits with 0 if outlast is usable here, with 1 if it is not. Warnings do not count.
    """
    checks = list(_examine(workspace_url))
    usable = all(check.state != "error" for check in checks)
    if as_json:
        import json

        click.echo(json.dumps({"usable": usable, "checks": [msgspec.to_builtins(c) for c in checks]}, indent=2))
    else:
        _print(checks)
        click.echo("outlast is usable here" if usable else "outlast is not usable here: see the errors above")
    return 0 if usable else 1


def _print(checks: list[Check]) -> None:
    """A table; how to fix it is a line of its own, which no narrow terminal cuts off."""
    colours = {"ok": "green", "warning": "yellow", "error": "red"}
    width = max(len(check.check) for check in checks)
    for check in checks:
        state = click.style(check.state.ljust(7), fg=colours[check.state])
        click.echo(f"{check.check.ljust(width)}  {state}  {check.says}")
        if check.fix:
            click.echo(f"{' ' * width}           fix: {check.fix}")


def _examine(workspace_url: str) -> Iterator[Check]:
    yield _python()
    yield Check(check="outlast", state="ok", says=f"version {outlast.__version__}")
    yield _guarded("local cloud", _local_cloud)
    for tool in _TOOLS:
        yield _tool(tool)
    try:
        workspace = find_workspace(workspace_url)
    except OutlastError as problem:
        yield _problem("workspace", problem)
        return
    row = _guarded("workspace", lambda: _workspace(workspace))
    yield row
    if row.state == "error":
        return  # nothing that follows could be known
    if "://" not in workspace.url:
        yield _guarded("disk space", lambda: _disk_space(workspace.url))
    if workspace.url.startswith("gs://") or "gcp" in workspace.clouds():
        yield from _google()
    if workspace.url.startswith("s3://") or "aws" in workspace.clouds():
        yield from _amazon()
    yield _guarded("clock", lambda: _clock(workspace))
    yield _guarded("supervisor", lambda: _supervisor(workspace))
    yield _guarded("machines", lambda: _machines(workspace))
    yield _guarded("stories", lambda: _stories(workspace))


def _guarded(name: str, examine: Callable[[], Check]) -> Check:
    """The row; what goes wrong while it is made is the row."""
    try:
        return examine()
    except OutlastError as problem:
        return _problem(name, problem)
    except OSError as problem:
        return Check(check=name, state="error", says=str(problem))


def _problem(name: str, problem: OutlastError) -> Check:
    return Check(check=name, state="error", says=" ".join(problem.message.split()), fix=problem.hint)


# This computer


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _PYTHON_MIN:
        wanted = ".".join(map(str, _PYTHON_MIN))
        return Check(check="python", state="error", says=version, fix=f"install Python {wanted} or newer")
    return Check(check="python", state="ok", says=version)


def _local_cloud() -> Check:
    from outlast.clouds.local.cloud import LocalCloud

    cloud = LocalCloud()
    try:
        modes = cloud.modes()
    except OSError as problem:
        says = f"{cloud.root} cannot be used: {problem.strerror}"
        fix = "set OUTLAST_LOCAL_CLOUD to a folder that you can write to"
        return Check(check="local cloud", state="error", says=says, fix=fix)
    if cloud.mode not in modes:
        known = ", ".join(f"`{mode}`" for mode in modes)
        says = f"OUTLAST_LOCAL_MODE is `{cloud.mode}`, which is no mode"
        return Check(check="local cloud", state="error", says=says, fix=f"unset it, or set it to one of {known}")
    if modes[cloud.mode]:
        says = f"OUTLAST_LOCAL_MODE is `{cloud.mode}`, which does not work here: {modes[cloud.mode]}"
        return Check(check="local cloud", state="error", says=says, fix="unset it")
    says = cloud.explain()
    if cloud.mode == next(iter(modes)) or sys.platform != "linux":
        return Check(check="local cloud", state="ok", says=says)
    fix = "it works as it is; for better isolation allow user namespaces (`sysctl user.max_user_namespaces`)"
    return Check(check="local cloud", state="warning", says=says, fix=fix)


def _tool(name: str) -> Check:
    if shutil.which(name):
        return Check(check=name, state="ok", says=_TOOLS[name])
    return Check(
        check=name,
        state="warning",
        says=f"missing: {_TOOLS[name]}",
        fix=f"install `{name}` with your system's package manager",
    )


# Google Cloud, for workspaces that have to do with it


def _google() -> Iterator[Check]:
    """Credentials, APIs, roles, quotas, prices: what is missing, each in a row of its own."""
    from outlast.clouds.gcp.cloud import GcpCloud
    from outlast.clouds.gcp.quota import tight
    from outlast.clouds.gcp.setup import missing

    cloud = GcpCloud()
    try:
        problems = missing(cloud.client, {cloud.account: "the machines"})
        problems += tight(cloud.client)
        cloud.catalogue.prices.look_up(cloud.client)
    except OutlastError as problem:
        # No error: the runs of other clouds do without.
        yield Check(check="gcp", state="warning", says=" ".join(problem.message.split()), fix=problem.hint)
        return
    for says, fix in problems:
        yield Check(check="gcp", state="warning", says=says, fix=fix)
    if not problems:
        says = f"project `{cloud.client.project}`: credentials, APIs, roles and quotas are there"
        yield Check(check="gcp", state="ok", says=says)
    yield Check(check="gcp prices", state="ok", says=cloud.catalogue.prices.source)


# AWS, the same way


def _amazon() -> Iterator[Check]:
    from outlast.clouds.aws.cloud import AwsCloud
    from outlast.clouds.aws.setup import missing, tight

    try:
        cloud = AwsCloud()
        region = cloud.client.region
        wanted = {cloud.profile: "the machines", cloud.supervisor_profile: "the machine that supervises"}
        problems = missing(cloud.client, {name: whose for name, whose in wanted.items() if name})
        problems += tight(cloud.client)
        source = cloud.prices.source("c6i.large")
    except OutlastError as problem:
        # No error: the runs of other clouds do without.
        yield Check(check="aws", state="warning", says=" ".join(problem.message.split()), fix=problem.hint)
        return
    for says, fix in problems:
        yield Check(check="aws", state="warning", says=says, fix=fix)
    if not problems:
        says = f"region `{region}`: credentials, rights, roles and quotas are there"
        yield Check(check="aws", state="ok", says=says)
    yield Check(check="aws prices", state="ok", says=f"spot: price history; on demand: {source}")


# The workspace


def _workspace(workspace: Workspace) -> Check:
    """Read, write, delete, and the one primitive that everything rests on."""
    if "://" not in workspace.url:
        _check_is_folder(workspace.url)
    _ = workspace.id
    key = f"doctor/{secrets.token_hex(6)}"
    try:
        workspace.bucket.create(key, b"1")
        try:
            workspace.bucket.create(key, b"2")
        except Exists:
            pass
        else:
            return Check(
                check="workspace",
                state="error",
                says=f"{workspace.url}: creating an object twice succeeds, so runs would not be safe there",
                fix="use a folder on a local disk, gs://… or s3://…",
            )
        if workspace.bucket.get(key) != b"1":
            raise WorkspaceError(f"{workspace.url}: what was written is not what is read")
    finally:
        workspace.bucket.delete(key)
    return Check(check="workspace", state="ok", says=f"{workspace.url}: can be read and written, create-only holds")


def _check_is_folder(path: str) -> None:
    above = path
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise WorkspaceError(
            f"{path} cannot be a workspace: {above} is no folder", hint="use another folder with --workspace"
        )
    if not os.access(above, os.W_OK | os.X_OK):
        raise WorkspaceError(
            f"{path} cannot be written: {above} is not yours to write to",
            hint="check who owns it, or use another folder with --workspace",
        )


def _disk_space(path: str) -> Check:
    free_gb = shutil.disk_usage(path).free / 1e9
    state: Literal["ok", "warning", "error"] = "ok"
    if free_gb < _FREE_GB_WARN:
        state = "error" if free_gb < _FREE_GB_MIN else "warning"
    fix = "" if state == "ok" else "make room, or use a workspace on another disk with --workspace"
    return Check(check="disk space", state=state, says=f"{free_gb:.1f} GB are free for the workspace", fix=fix)


def _clock(workspace: Workspace) -> Check:
    """The store's clock against ours. Ages are judged by the store's alone; people compare."""
    before = time.time()
    stored = workspace.bucket.put("clock", b"").modified_at
    after = time.time()
    off_s = 0.0 if before <= stored <= after else min(abs(stored - before), abs(stored - after))
    if off_s <= _CLOCK_S_MAX:
        return Check(check="clock", state="ok", says="this computer and the workspace agree about the time")
    way = "behind" if stored > after else "ahead of"
    return Check(
        check="clock",
        state="warning",
        says=f"this computer is {describe_s(off_s)} {way} the workspace: no run is harmed, but times look odd",
        fix="switch on time synchronisation (NTP)",
    )


def _supervisor(workspace: Workspace) -> Check:
    from outlast.supervisor.loop import Supervisor

    holder = Supervisor(workspace, clouds(workspace)).lease.holder()
    waiting = {*workspace.heartbeats(), *workspace.wakeups()}
    if holder is not None:
        return Check(check="supervisor", state="ok", says=f"{holder.who} supervises this workspace")
    if not waiting:
        return Check(check="supervisor", state="ok", says="nobody supervises, and no run needs it")
    says = "nobody supervises, and " + ("1 run needs it" if len(waiting) == 1 else f"{len(waiting)} runs need it")
    return Check(check="supervisor", state="warning", says=says, fix="`outlast supervise`")


def _machines(workspace: Workspace) -> Check:
    from outlast.app.dry_run import dry_run
    from outlast.supervisor.world import Reap, Release

    world, steps = dry_run(workspace)
    if world.unreachable:
        says = "; ".join(f"{cloud} cannot be seen: {why}" for cloud, why in world.unreachable.items())
        return Check(check="machines", state="warning", says=says)
    live = sum(view.state.alive for view in world.runs)
    says = f"machines of this workspace: {len(world.machines)}; live runs: {live}"
    left = {step.machine for step in steps if isinstance(step, Reap | Release)} & set(world.machines)
    if left:
        says += f"; left over: {len(left)}"
        return Check(check="machines", state="warning", says=says, fix="`outlast reap` deletes what no live run owns")
    return Check(check="machines", state="ok", says=says)


def _stories(workspace: Workspace) -> Check:
    from concurrent.futures import ThreadPoolExecutor

    from outlast.formatting.run_row import DAMAGED, unread

    runs = workspace.runs()
    with ThreadPoolExecutor(_THREADS) as pool:
        found = [problem for problem in pool.map(lambda run: _damage(workspace, run), runs) if problem is not None]
    damaged = [" ".join(problem.message.split()) for problem in found if unread(problem) == DAMAGED]
    if found and not damaged:
        says = f"could not be read now: {len(found)} of {len(runs)}: {found[0].message}"
        return Check(check="stories", state="warning", says=says, fix="run `outlast doctor` again")
    if not damaged:
        return Check(check="stories", state="ok", says=f"runs: {len(runs)}; every story can be read")
    more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
    return Check(
        check="stories",
        state="warning",
        says=f"damaged: {len(damaged)} of {len(runs)}: {damaged[0]}{more}",
        fix="other runs go on; restore the named objects from a backup, or use the outlast that wrote them",
    )


def _damage(workspace: Workspace, run: str) -> OutlastError | None:
    """The error that reading the memory of a run raises, if any."""
    try:
        workspace.request(run)
        story = workspace.story(run)
        story.refresh()
        # Every event, also those that a snapshot stands for.
        tuple(story.events)
    except OutlastError as problem:
        return problem
    return None
