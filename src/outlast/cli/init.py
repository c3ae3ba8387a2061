"""`outlast init`: a first `outlast.toml` with guessed values, and all other fields commented out."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tomllib

import click

from outlast.app.project import packages_text
from outlast.cli.shared.command import UNCHANGED, command
from outlast.cli.shared.project import FILE, Project, spec_of
from outlast.cli.shared.terminal import note
from outlast.errors import UsageError

_SCRIPTS = ("train.py", "main.py")
_CHECKPOINT_FOLDERS = ("checkpoints", "checkpoint", "ckpt", "ckpts", "runs")

# Comments begin with `# `, examples with `#` alone: without that `#` the line is TOML.
_TEMPLATE = """\
# The command, its machine and its limits. All fields are explained in docs/spec.md.
# Lines that begin with `#` and no space are examples: remove the `#` to use one.

# Runs are called NAME-1, NAME-2 and so on.
name = {name}

# Text is run by bash; a list is run without a shell. {{iterations}} is replaced by that parameter.
{command_comment}command = {command}
# An option to resume is left out until a checkpoint exists: train.py {{resume:--resume {{newest:checkpoints/*}}}}

# Run by bash before the command, in each attempt.
#setup = "make data"

# The workspace, which stores everything: a folder, gs://BUCKET/PATH or s3://BUCKET/PATH. Default: ~/.outlast/workspace.
#workspace = "~/.outlast/workspace"

# Parameters: substituted in the command and passed in OUTLAST_PARAMS. Override one with `outlast run -p NAME=VALUE`.
#[params]
#iterations = 20

[checkpoint]
# The folder or file that the program writes checkpoints to and resumes from. Complete ones survive the machine.
{checkpoint}
# Minimum time between two commits; without it, outlast chooses.
#every = "5m"
# How many checkpoints are kept; and every tenth is kept forever.
#keep = 3
#keep_every = 10
# Also keep the best, by a metric that the program logs.
#keep_best = "min:loss"

#[machine]
# local (this computer), gcp or aws.
#cloud = "local"
# Numbers or ranges: 8, "8+", "4..16".
#cpus = "1+"
#memory = "4GB+"
# Or alternatives, the preferred first: ["H100", "A100-80GB:2"].
#gpu = "T4:1"
#disk = "10GB"
# Cheap preemptible machines; with `fallback`, on demand when none is available.
#spot = true
#fallback = false
# Or a machine type by name.
#type = "local-4-t4"
#image = "base"
# Only these zones, in order of preference; never those.
#zones = ["local1-a", "local1-b"]
#exclude_zones = ["local2-a"]

#[code]
# Copied to the machine, except files that .gitignore and .outlastignore name. Or: git = "URL", ref = "v1.2".
#path = "."
#size_max = "100MB"

#[environment]
# The file that lists the Python packages: by default uv.lock, requirements.txt, environment.yml or pyproject.toml.
#from = "requirements.txt"

# Copied to the machine before the start: folder there = source (a local folder, gs://… or s3://…).
#[data]
#"data" = "gs://bucket/census"

# Environment variables of the command.
#[env]
#OMP_NUM_THREADS = 4

# Variables whose values come from your environment and are never stored: true, or another local name.
#[secrets]
#WANDB_API_KEY = true

#[outputs]
# Files in this folder are copied to the workspace; `outlast pull` copies them to you.
#path = "outputs"

#[limits]
# The run ends at this cost, this long after submission, or after this much running time.
#cost_usd = 5
#deadline = "12h"
#max_hours = 10
# Crashes, and attempts without a new checkpoint, that end the run. Preemptions do not count as crashes.
#crashes = 3
#no_progress = 8
# A hang is this much time without output and without a new checkpoint.
#hang_after = "30m"
# Stop when all GPUs have been idle for this long: an idle GPU costs as much as a busy one.
#idle_gpu = "30m"
# Keep the machine of a crashed attempt for this long, for debugging.
#keep_on_failure = "1h"
"""


@command(section="start", interrupt=UNCHANGED)
@click.argument("folder", required=False, default=".")
@click.option("--force", is_flag=True, help="Overwrite an existing outlast.toml.")
@click.option(
    "--from",
    "source",
    type=click.Path(),
    metavar="FILE",
    default="",
    help="Convert a SkyPilot YAML, a Ray cluster file or a command line of torchrun.",
)
def init(folder: str, force: bool, source: str) -> int:
    """Write a commented `outlast.toml`.

    It goes to FOLDER (the present one) and contains a guess at the command.
    """
    if not os.path.isdir(folder):
        raise UsageError(f"no such folder: `{folder}`")
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
        note("found no script to run: set `command` in the file first")
    note(packages_text(folder))
    there = "" if os.path.samefile(folder, ".") else f"cd {shlex.quote(folder)} && "
    note(f"next: review it, then start with `{there}{next_step}`")
    return 0


def _refuse_if_there(folder: str, path: str) -> None:
    if os.path.lexists(path):
        raise UsageError(f"`{path}` already exists", hint="overwrite it with --force")
    project = os.path.join(folder, "pyproject.toml")
    if os.path.isfile(project):
        try:
            with open(project, "rb") as file:
                table = tomllib.load(file)
        except (OSError, ValueError):
            return  # an unreadable file has no [tool.outlast]
        if "outlast" in table.get("tool", {}):
            raise UsageError(
                f"`{os.path.normpath(project)}` already has [tool.outlast], which `{FILE}` would override",
                hint="edit it, or write the file anyway with --force",
            )


def draft(folder: str) -> str:
    """Return the text of the file: valid as it is, and with all examples enabled."""
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
    """Return the script to run, if it can be guessed."""
    for name in _SCRIPTS:
        if os.path.isfile(os.path.join(folder, name)):
            return name
    found = [name for name in sorted(os.listdir(folder)) if name.endswith(".py") and not name.startswith(".")]
    return found[0] if len(found) == 1 else ""


def _quoted(text: str) -> str:
    # TOML has the same escapes as JSON, except those above ASCII.
    return json.dumps(text, ensure_ascii=False)
