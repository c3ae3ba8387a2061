"""The checks of the set-up behind `outlast doctor`, each with a fix. They change nothing."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

import outlast
from outlast.app.clouds import clouds
from outlast.clouds.cloud import HasSetupChecks
from outlast.clouds.traits import DEFAULT_CLOUD, in_sight, known_clouds, store_owner, traits_of
from outlast.errors import Exists, OutlastError, WorkspaceError
from outlast.extras import PURPOSES, install_hint, missing_extras
from outlast.kit.uv import find_uv
from outlast.spec.quantity import describe_s
from outlast.store.traits import scheme_of
from outlast.workspace import Workspace

_PYTHON_MIN = (3, 11)
# Free space below the first is a warning, below the second an error.
_FREE_GB_WARN, _FREE_GB_MIN = 2.0, 0.05
_CLOCK_S_MAX = 5.0
_THREADS = 16

_TOOLS = {
    "bash": "runs a `command` that is text, and `setup`; without it write `command` as a list",
    "git": "fetches `[code] git`, and records the commit and the uncommitted changes of your code",
    "ssh": "logs in to machines (`sync`, `attach`, `tunnel`), and fetches `[code] git` from git@host:repo",
    "rsync": "copies files for `outlast sync`",
    "tmux": "holds the terminals of `outlast attach` on machines of the local cloud",
}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One result. An error makes outlast unusable on this computer; a warning does not."""

    check: str
    state: Literal["ok", "warning", "error"]
    says: str
    fix: str = ""


def examine_setup(find_workspace: Callable[[], Workspace], cloud_names: Sequence[str] = ()) -> Iterator[Check]:
    """Check this computer, the clouds whose credentials are in sight or that are named, and the workspace."""
    yield _python()
    yield Check(check="outlast", state="ok", says=f"version {outlast.__version__}")
    yield from _cloud(DEFAULT_CLOUD)
    for tool in _TOOLS:
        yield _tool(tool)
    yield _uv()
    yield _extras()
    seen = set(cloud_names) or {name for name in known_clouds() if in_sight(name, os.environ)}
    try:
        workspace = find_workspace()
    except OutlastError as problem:
        yield _problem("workspace", problem)
        yield from _clouds(seen)
        return
    row = _guarded("workspace", lambda: _workspace(workspace))
    yield row
    if row.state == "error":
        yield from _clouds(seen)
        return  # the remaining checks need a workspace
    if not workspace.store.remote:
        yield _guarded("disk space", lambda: _disk_space(workspace.url))
    owner = store_owner(scheme_of(workspace.url))
    yield from _clouds(seen if cloud_names else {*seen, owner, *workspace.clouds()}, owner=owner, url=workspace.url)
    yield _guarded("clock", lambda: _clock(workspace))
    yield _guarded("supervisor", lambda: _supervisor(workspace))
    yield _guarded("machines", lambda: _machines(workspace))
    yield _guarded("stories", lambda: _stories(workspace))


def _guarded(name: str, examine: Callable[[], Check]) -> Check:
    """Run a check; an error becomes its result."""
    try:
        return examine()
    except OutlastError as problem:
        return _problem(name, problem)
    except OSError as problem:
        return Check(check=name, state="error", says=str(problem))


def _problem(name: str, problem: OutlastError) -> Check:
    return Check(check=name, state="error", says=" ".join(problem.message.split()), fix=problem.hint)


# This computer


def _extras() -> Check:
    """List the optional parts that are not installed. Their absence matters once a command needs one."""
    missing = missing_extras()
    if not missing:
        return Check(check="extras", state="ok", says="all are installed")
    says = "not installed: " + ", ".join(f"{name} ({PURPOSES[name]})" if name in PURPOSES else name for name in missing)
    return Check(check="extras", state="ok", says=says, fix=f"{install_hint(f'outlast[{missing[0]}]')}, if you need it")


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _PYTHON_MIN:
        wanted = ".".join(map(str, _PYTHON_MIN))
        return Check(check="python", state="error", says=version, fix=f"install Python {wanted} or newer")
    return Check(check="python", state="ok", says=version)


def _clouds(names: set[str], *, owner: str = "", url: str = "") -> Iterator[Check]:
    """Check remote clouds; the one that owns the workspace's store also checks its bucket."""
    for name in known_clouds():
        if name in names and name != DEFAULT_CLOUD:
            yield from _cloud(name, url.partition("://")[2].partition("/")[0] if name == owner else "")


def _cloud(name: str, bucket: str = "") -> Iterator[Check]:
    """Run a cloud's own checks. A remote cloud that is not set up is a warning: other clouds work without it."""
    remote = traits_of(name).remote
    try:
        cloud = clouds()[name]
        rows = list(cloud.setup_checks(bucket)) if isinstance(cloud, HasSetupChecks) else []
    except OutlastError as problem:
        failed = _problem(name if remote else f"{name} cloud", problem)
        yield msgspec.structs.replace(failed, state="warning") if remote else failed
        return
    for row in rows:
        yield Check(check=row.name, state=row.state, says=row.text, fix=row.fix)


def _tool(name: str) -> Check:
    if shutil.which(name):
        return Check(check=name, state="ok", says=_TOOLS[name])
    return Check(
        check=name,
        state="warning",
        says=f"missing: {_TOOLS[name]}",
        fix=f"install `{name}` with your system's package manager",
    )


def _uv() -> Check:
    says = "installs packages: `[environment]`, `[image] pip`, machines of Google Cloud and AWS"
    try:
        find_uv()
    except OutlastError as problem:
        return Check(check="uv", state="ok", says=f"not installed; it {says}", fix=f"{problem.hint}; if you need it")
    return Check(check="uv", state="ok", says=says)


# The workspace


def _workspace(workspace: Workspace) -> Check:
    """Check read, write, delete and create-only writes, on which the safety of runs depends."""
    if not workspace.store.remote:
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
            raise WorkspaceError(f"{workspace.url}: an object that was read back differs from the one written")
    finally:
        workspace.bucket.delete(key)
    return Check(
        check="workspace", state="ok", says=f"{workspace.url}: can be read and written; create-only writes work"
    )


def _check_is_folder(path: str) -> None:
    above = path
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise WorkspaceError(
            f"{path} cannot be a workspace: {above} is not a folder", hint="use another folder with --workspace"
        )
    if not os.access(above, os.W_OK | os.X_OK):
        raise WorkspaceError(
            f"{path} cannot be written: no write permission for {above}",
            hint="check its owner, or use another folder with --workspace",
        )


def _disk_space(path: str) -> Check:
    free_gb = shutil.disk_usage(path).free / 1e9
    state: Literal["ok", "warning", "error"] = "ok"
    if free_gb < _FREE_GB_WARN:
        state = "error" if free_gb < _FREE_GB_MIN else "warning"
    fix = "" if state == "ok" else "make room, or use a workspace on another disk with --workspace"
    return Check(check="disk space", state=state, says=f"{free_gb:.1f} GB free for the workspace", fix=fix)


def _clock(workspace: Workspace) -> Check:
    """Compare the store's clock with ours. outlast judges ages by the store's clock only; users compare both."""
    before = time.time()
    stored = workspace.bucket.now("clock")
    after = time.time()
    off_s = 0.0 if before <= stored <= after else min(abs(stored - before), abs(stored - after))
    if off_s <= _CLOCK_S_MAX:
        return Check(check="clock", state="ok", says="the clocks of this computer and the workspace agree")
    way = "behind" if stored > after else "ahead of"
    return Check(
        check="clock",
        state="warning",
        says=f"this computer is {describe_s(off_s)} {way} the workspace: only displayed times are affected",
        fix="switch on time synchronisation (NTP)",
    )


def _supervisor(workspace: Workspace) -> Check:
    from outlast.app.background import starting_supervisor
    from outlast.supervisor.loop import Supervisor

    holder = Supervisor(workspace, clouds(workspace)).lease.holder()
    waiting = {*workspace.heartbeats(), *workspace.wakeups()}
    if holder is not None:
        return Check(check="supervisor", state="ok", says=f"{holder.who} supervises this workspace")
    if not waiting:
        return Check(check="supervisor", state="ok", says="no supervisor is running, and no run needs one")
    if pid := starting_supervisor(workspace):
        return Check(check="supervisor", state="ok", says=f"a supervisor is starting (process {pid} of this computer)")
    says = "no supervisor is running, and " + (
        "1 run needs one" if len(waiting) == 1 else f"{len(waiting)} runs need one"
    )
    return Check(check="supervisor", state="warning", says=says, fix="`outlast supervise`")


def _machines(workspace: Workspace) -> Check:
    from outlast.app.dry_run import dry_run
    from outlast.supervisor.world import Reap, Release

    world, steps = dry_run(workspace)
    if world.unreachable:
        says = "; ".join(f"{cloud} cannot be reached: {why}" for cloud, why in world.unreachable.items())
        return Check(check="machines", state="warning", says=says)
    live = sum(view.state.alive for view in world.runs)
    says = f"machines of this workspace: {len(world.machines)}; live runs: {live}"
    left = {step.machine for step in steps if isinstance(step, Reap | Release)} & set(world.machines)
    if left:
        says += f"; left over: {len(left)}"
        return Check(
            check="machines", state="warning", says=says, fix="`outlast reap` deletes machines that no live run owns"
        )
    return Check(check="machines", state="ok", says=says)


def _stories(workspace: Workspace) -> Check:
    from concurrent.futures import ThreadPoolExecutor

    from outlast.formatting.run_row import DAMAGED, unread
    from outlast.runs.group import Groups

    groups = set(Groups(workspace).all())
    runs = [run for run in workspace.runs() if run not in groups]
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
        fix="other runs continue; restore the named objects from a backup, or use the outlast version that wrote them",
    )


def _damage(workspace: Workspace, run: str) -> OutlastError | None:
    """Return the error of reading a run's request and story, if any."""
    try:
        workspace.request(run)
        story = workspace.story(run)
        story.refresh()
        # Read every event, also those that a snapshot replaces.
        tuple(story.events)
    except OutlastError as problem:
        return problem
    return None
