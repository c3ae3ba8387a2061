"""`outlast machine ssh`, `cp` and `ssh-config`."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

import click

from outlast.cli.completion import complete_path_on_machine
from outlast.cli.machine.find import cloud_option, find, interactive_clouds, machine_records_in, name_argument
from outlast.cli.shared.command import RESUMABLE, UNCERTAIN, command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.terminal import note
from outlast.errors import BadRequest, CloudError, OutlastError, UsageError

if TYPE_CHECKING:
    from outlast.app.types import InteractiveCloud, Link, MachineRecords


def _connect(machine_records: MachineRecords, name: str, cloud_name: str) -> Link:
    """Return a link to a running machine. Raises BadRequest for a stopped one."""
    from outlast.machines.ssh import Link

    cloud, machine = find(machine_records, name, cloud_name=cloud_name)
    if machine.status in ("stopped", "broken"):
        why = f": {machine.why}" if machine.why not in ("", machine.status) else ""
        raise BadRequest(f"{name} is {machine.status}{why}", hint=f"`outlast machine start {name}`")
    return Link(cloud, name)


@command(
    interrupt="left the machine; it keeps running and is billed: `outlast machine list`",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--tty", "-t", is_flag=True, help="Allocate a terminal for COMMAND.")
@cloud_option
@workspace_option
@name_argument
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def ssh(name: str, command: tuple[str, ...], workspace_url: str, cloud_name: str, tty: bool) -> int:
    """Log in to the machine NAME, or run COMMAND there and exit with its code."""
    link = _connect(machine_records_in(workspace_url), name, cloud_name)
    argv = link.argv(tty=tty)
    if command and command[0] == "--":
        command = command[1:]
    if command:
        from outlast.machines.environment import with_packages

        # One argument is a line for the remote shell; several arrive unchanged.
        argv += ["--", with_packages(command[0] if len(command) == 1 else shlex.join(command))]
    sys.stdout.flush()
    sys.stderr.flush()
    # Replace this process: signals, the terminal and the exit code are those of ssh.
    os.execv(argv[0], argv)


@command(progress="copying", interrupt=RESUMABLE)
@cloud_option
@workspace_option
@click.argument("paths", nargs=-1, required=True, metavar="SOURCE... DEST", shell_complete=complete_path_on_machine)
def cp(paths: tuple[str, ...], workspace_url: str, cloud_name: str) -> int:
    """Copy files and folders recursively: `cp NAME:results .`, `cp data.csv NAME:`."""
    import subprocess

    from outlast.machines import sshfiles

    if len(paths) < 2:
        raise UsageError("expected SOURCE and DEST", hint="`outlast machine cp NAME:results .`")
    machine_records = machine_records_in(workspace_url)
    machines = {name for path in paths if (name := _machine_in(path))}
    if not machines:
        raise UsageError("no path is on a machine", hint="write `NAME:path`; a local file with a colon as `./a:b`")
    for path in paths[:-1]:
        if not _machine_in(path) and not os.path.exists(path):
            raise UsageError(f"no such file: `{path}`")
    for name in sorted(machines):
        _connect(machine_records, name, cloud_name).argv()
    argv = [sshfiles.need("scp"), "-F", sshfiles.config_path(), "-r", "-p", "-3" if len(machines) > 1 else "-q"]
    argv += ["--", *[f"outlast-{path}" if _machine_in(path) else path for path in paths]]
    answer = subprocess.run(argv, check=False)
    if answer.returncode != 0:
        raise CloudError(f"scp failed with exit code {answer.returncode}; see its output above")
    return 0


def _machine_in(path: str) -> str:
    """Return the machine in a path, as scp reads it: with a slash before the colon it is a local file."""
    name, colon, _ = path.partition(":")
    return name if colon and name and "/" not in name else ""


@command("ssh-config", interrupt=UNCERTAIN)
@click.option("--print", "only_print", is_flag=True, help="Print the settings; change nothing.")
@workspace_option
def ssh_config(workspace_url: str, only_print: bool) -> int:
    """Add your machines to ~/.ssh/config as `outlast-NAME`, for `ssh`, `scp`, `rsync` and editors."""
    from outlast.machines import sshfiles

    if not only_print:
        _write_blocks(machine_records_in(workspace_url))
        if sshfiles.include_in_users_config():
            note(f"added a line at the top of ~/.ssh/config: {sshfiles.include_line()}")
        click.echo("\n".join(f"ssh outlast-{name}" for name in sshfiles.machines_written()) or "no running machines")
        return 0
    if os.path.exists(sshfiles.config_path()):
        with open(sshfiles.config_path(), encoding="utf-8") as file:
            click.echo(file.read(), nl=False)
    return 0


def _write_blocks(machine_records: MachineRecords) -> None:
    """Write ssh settings for all running manual machines, and remove those of deleted ones."""
    from outlast.machines import sshfiles
    from outlast.machines.status import collect_status

    found = interactive_clouds(machine_records.workspace)
    entries, unreachable = collect_status(found, machine_records, with_drift=False)
    there = {entry.name for entry in entries if entry.machine is not None}
    for name in sshfiles.machines_written():
        if name not in there and not unreachable:
            sshfiles.forget_machine(name)
    for entry in entries:
        if entry.machine_record is not None and entry.status == "running":
            _write_block(found[entry.cloud], entry.name)


def _write_block(cloud: InteractiveCloud, name: str) -> None:
    from outlast.machines import sshfiles

    try:
        cloud.admit(name, sshfiles.public_key())
        access = cloud.access(name)
    except OutlastError as problem:
        note(f"{name} cannot be reached: {problem.message}")
        return
    if access.host_keys:
        sshfiles.write_machine(cloud.name, name, access)
