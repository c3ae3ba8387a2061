"""ssh to machines that users created: the settings in ~/.ssh, copies, and command lines."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from outlast.app.machines import connect_machine, interactive_clouds
from outlast.errors import OutlastError, UsageError

if TYPE_CHECKING:
    from outlast.clouds.cloud import InteractiveCloud
    from outlast.records.machines import MachineRecords

Report = Callable[[str], None]


def ssh_argv(
    records: MachineRecords, name: str, command: Sequence[str] = (), *, cloud_name: str = "", tty: bool = False
) -> list[str]:
    """Return the command line that logs in to a machine, or runs a command there with the installed packages."""
    argv = list(connect_machine(records, name, cloud_name=cloud_name).argv(tty=tty))
    if command:
        from outlast.machines.environment import with_packages

        # One argument is a line for the remote shell; several arrive unchanged.
        argv += ["--", with_packages(command[0] if len(command) == 1 else shlex.join(command))]
    return argv


def copy_argv(records: MachineRecords, paths: Sequence[str], *, cloud_name: str = "") -> list[str]:
    """Return the command line that copies files; `NAME:path` is a path on a machine. Raises UsageError."""
    from outlast.machines import sshfiles

    if len(paths) < 2:
        raise UsageError("expected SOURCE and DEST", hint="`outlast machine cp NAME:results .`")
    machines = {name for path in paths if (name := _machine_in(path))}
    if not machines:
        raise UsageError("no path is on a machine", hint="write `NAME:path`; a local file with a colon as `./a:b`")
    for path in paths[:-1]:
        if not _machine_in(path) and not os.path.exists(path):
            raise UsageError(f"no such file: `{path}`")
    for name in sorted(machines):
        connect_machine(records, name, cloud_name=cloud_name).argv()
    argv = [sshfiles.need("scp"), "-F", sshfiles.config_path(), "-r", "-p", "-3" if len(machines) > 1 else "-q"]
    return [*argv, "--", *[f"outlast-{path}" if _machine_in(path) else path for path in paths]]


def _machine_in(path: str) -> str:
    """Return the machine in a path, as scp reads it: with a slash before the colon it is a local file."""
    name, colon, _ = path.partition(":")
    return name if colon and name and "/" not in name else ""


def write_ssh_config(records: MachineRecords, *, report: Report) -> list[str]:
    """Write ssh settings for all running machines, remove those of deleted ones; return the machines."""
    from outlast.machines import sshfiles
    from outlast.machines.status import collect_status

    found = interactive_clouds(records.workspace)
    entries, unreachable = collect_status(found, records, with_drift=False)
    there = {entry.name for entry in entries if entry.machine is not None}
    for name in sshfiles.machines_written():
        if name not in there and not unreachable:
            sshfiles.forget_machine(name)
    for entry in entries:
        if entry.machine_record is not None and entry.status == "running":
            _write_block(found[entry.cloud], entry.name, report)
    include_in_users_config(report)
    return list(sshfiles.machines_written())


def _write_block(cloud: InteractiveCloud, name: str, report: Report) -> None:
    from outlast.machines import sshfiles

    try:
        cloud.admit(name, sshfiles.public_key())
        access = cloud.access(name)
    except OutlastError as problem:
        report(f"{name} cannot be reached: {problem.message}")
        return
    if access.host_keys:
        sshfiles.write_machine(cloud.name, name, access)


def include_in_users_config(report: Report, *, where: str = "at the top of ~/.ssh/config") -> None:
    """Let ~/.ssh/config include the settings, and report the line if it was added."""
    from outlast.machines import sshfiles

    if sshfiles.include_in_users_config():
        report(f"added a line {where}: {sshfiles.include_line()}")


def is_in_users_config() -> bool:
    from outlast.machines import sshfiles

    return sshfiles.included()


def ssh_config_text() -> str:
    """Return the settings as they are now; empty if there are none."""
    from outlast.machines import sshfiles

    if not os.path.exists(sshfiles.config_path()):
        return ""
    with open(sshfiles.config_path(), encoding="utf-8") as file:
        return file.read()
