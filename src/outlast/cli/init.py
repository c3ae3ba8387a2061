"""`outlast init`: a first `outlast.toml`, with what can be guessed filled in and the rest commented out."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tomllib

import click

from outlast.cli.shared.command import UNCHANGED, command
from outlast.cli.shared.project import FILE, Project, spec_of
from outlast.cli.shared.terminal import note
from outlast.errors import UsageError

_SCRIPTS = ("train.py", "main.py")
_CHECKPOINT_FOLDERS = ("checkpoints", "checkpoint", "ckpt", "ckpts", "runs")

# Prose begins with `# `, an example with `#` alone: take that `#` away, and the line is TOML.
_TEMPLATE = """\
# What to run, on which machine, within which limits. All fields are explained in docs/spec.md.
# Lines that begin with `#` and no space are examples: take the `#` away to use one.

# Runs are called NAME-1, NAME-2 and so on.
name = {name}

# Text is given to bash; a list of words is run as it is. {{iterations}} is replaced by that parameter.
{command_comment}command = {command}

# Run by bash before the command, in each attempt.
#setup = "pip install -r requirements.txt"

# Where everything is remembered: a folder, gs://BUCKET/PATH or s3://BUCKET/PATH. ~/.outlast/workspace if not given.
#workspace = "~/.outlast/workspace"

# Parameters: put into the command, and given to it in OUTLAST_PARAMS. Override one with `outlast run -p NAME=VALUE`.
#[params]
#iterations = 20

[checkpoint]
# The folder, or the file, that the program writes checkpoints to, and resumes from. What is whole survives the machine.
{checkpoint}
# Least time between two commits; without it, outlast chooses.
#every = "5m"
# How many checkpoints are kept; and, for good, every tenth.
#keep = 3
#keep_every = 10
# And the best, by a metric that the program logs.
#keep_best = "min:loss"

#[machine]
# local (this computer), gcp or aws.
#cloud = "local"
# Numbers or ranges: 8, "8+", "4..16".
#cpus = "1+"
#memory = "4GB+"
#gpu = "T4:1"
#disk = "10GB"
# Cheap machines that may be taken away; with `fallback`, on demand when there is none.
#spot = true
#fallback = false
# Or a machine type by its name.
#type = "local-4-t4"
#image = "base"
# Only these zones, the first one preferred; never those.
#zones = ["local1-a", "local1-b"]
#exclude_zones = ["local2-a"]

#[code]
# Goes to the machine, but for what .gitignore and .outlastignore name. Or: git = "URL", ref = "v1.2".
#path = "."
#size_max = "100MB"

# Brought to the machine before the start: folder there = where from (a folder here, gs://… or s3://…).
#[data]
#"data" = "gs://bucket/census"

# Variables for the command.
#[env]
#OMP_NUM_THREADS = 4

# Variables whose values are taken from your environment and never written down: true, or another name here.
#[secrets]
#WANDB_API_KEY = true

#[outputs]
# What the program writes here is copied to the workspace, and by `outlast pull` to you.
#path = "outputs"

#[limits]
# The run ends at this cost, this long after its submission, or after this much time of running.
#cost_usd = 5
#deadline = "12h"
#max_hours = 10
# So many crashes end the run; preemptions do not count. So many attempts without a new checkpoint end it, too.
#crashes = 3
#no_progress = 8
# No output and no new checkpoint for so long is a hang.
#hang_after = "30m"
# Keep the machine of a crashed attempt for so long, for debugging.
#keep_on_failure = "1h"
"""


@command(section="start", interrupt=UNCHANGED)
@click.argument("folder", required=False, default=".")
@click.option("--force", is_flag=True, help="Overwrite an outlast.toml that is there.")
@click.option(
    "--from",
    "source",
    type=click.Path(),
    metavar="FILE",
    default="",
    help="Turn a SkyPilot YAML or a Ray cluster file into it.",
)
def init(folder: str, force: bool, source: str) -> int:
    """Write a commented `outlast.toml`."""
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder `{folder}`")
    path = os.path.normpath(os.path.join(folder, FILE))
    if not force:
        _refuse_if_there(folder, path)
    next_step = "outlast run"
    if source:
        from outlast.cli.init_from import converted

        text, next_step = converted(source, folder)
    else:
        text = draft(folder)
    try:
        with open(path, "w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as problem:
        raise UsageError(f"cannot write `{path}`: {problem.strerror}") from problem
    click.echo(f"wrote {path}")
    if not source and not _script(folder):
        note("there is no script that could be guessed: set `command` in it first")
    there = "" if os.path.samefile(folder, ".") else f"cd {shlex.quote(folder)} && "
    note(f"next: look through it, then start with `{there}{next_step}`")
    return 0


def _refuse_if_there(folder: str, path: str) -> None:
    if os.path.lexists(path):
        raise UsageError(f"`{path}` is there already", hint="overwrite it with --force")
    project = os.path.join(folder, "pyproject.toml")
    if os.path.isfile(project):
        try:
            with open(project, "rb") as file:
                table = tomllib.load(file)
        except (OSError, ValueError):
            return  # whatever it is, it says nothing about outlast
        if "outlast" in table.get("tool", {}):
            raise UsageError(
                f"`{os.path.normpath(project)}` has [tool.outlast] already, which `{FILE}` would hide",
                hint="edit that, or write the file nevertheless with --force",
            )


def draft(folder: str) -> str:
    """The text of the file: valid as it is, and with every example put into force."""
    folder = os.path.abspath(folder)
    script = _script(folder)
    python = "python" if shutil.which("python") else "python3"
    command = f"{python} {shlex.quote(script or 'train.py')}"
    checkpoint = next((name for name in _CHECKPOINT_FOLDERS if os.path.isdir(os.path.join(folder, name))), "")
    name = spec_of(Project({"command": command}, folder=folder, source=FILE), {}, ()).name
    return _TEMPLATE.format(
        name=_quoted(name),
        command=_quoted(command),
        command_comment="" if script else "# This is only an example: no script was found.\n",
        checkpoint=f"path = {_quoted(checkpoint)}" if checkpoint else '#path = "checkpoints"',
    )


def _script(folder: str) -> str:
    """The script that is likely to be meant; empty if that cannot be told."""
    for name in _SCRIPTS:
        if os.path.isfile(os.path.join(folder, name)):
            return name
    found = [name for name in sorted(os.listdir(folder)) if name.endswith(".py") and not name.startswith(".")]
    return found[0] if len(found) == 1 else ""


def _quoted(text: str) -> str:
    # What JSON escapes is escaped alike in TOML, as long as characters above ASCII stay what they are.
    return json.dumps(text, ensure_ascii=False)
