"""`outlast machine ssh`, `cp` and `ssh-config`."""

from __future__ import annotations

import os
import sys

import click

from outlast.app.machine_ssh import copy_argv, ssh_argv, ssh_config_text, write_ssh_config
from outlast.cli.completion import complete_path_on_machine
from outlast.cli.machine.find import cloud_option, machine_records_in, name_argument
from outlast.cli.shared.command import RESUMABLE, UNCERTAIN, command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.terminal import note
from outlast.errors import CloudError


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
    if command and command[0] == "--":
        command = command[1:]
    argv = ssh_argv(machine_records_in(workspace_url), name, command, cloud_name=cloud_name, tty=tty)
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

    argv = copy_argv(machine_records_in(workspace_url), paths, cloud_name=cloud_name)
    answer = subprocess.run(argv, check=False)
    if answer.returncode != 0:
        raise CloudError(f"scp failed with exit code {answer.returncode}; see its output above")
    return 0


@command("ssh-config", interrupt=UNCERTAIN)
@click.option("--print", "only_print", is_flag=True, help="Print the settings; change nothing.")
@workspace_option
def ssh_config(workspace_url: str, only_print: bool) -> int:
    """Add your machines to ~/.ssh/config as `outlast-NAME`, for `ssh`, `scp`, `rsync` and editors."""
    if only_print:
        click.echo(ssh_config_text(), nl=False)
        return 0
    names = write_ssh_config(machine_records_in(workspace_url), report=note)
    click.echo("\n".join(f"ssh outlast-{name}" for name in names) or "no running machines")
    return 0
