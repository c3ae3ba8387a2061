"""The options that describe a run, and their translation to the tables of a spec file."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from outlast.cli.completion import complete_cloud, complete_image
from outlast.cli.shared.project import parse_assignment, typed
from outlast.errors import UsageError
from outlast.store.traits import is_url

F = TypeVar("F", bound=Callable[..., Any])
# Options that stand for one field of the spec: option → (section, field, what it takes, help).
_FIELDS: dict[str, tuple[str, str, str, str]] = {
    "cloud": ("machine", "cloud", "NAME", "On this cloud: local, gcp or aws; several with commas."),
    "cpus": ("machine", "cpus", "N", "Processors: 8, 8+ or 4..16."),
    "memory": ("machine", "memory", "SIZE", "Memory: 32GB or 32GB+."),
    "gpu": ("machine", "gpu", "KIND", "GPUs: T4 or A100:8; alternatives with commas."),
    "disk": ("machine", "disk", "SIZE", "Disk: 50GB."),
    "type": ("machine", "type", "NAME", "Machine type by name."),
    "image": ("machine", "image", "NAME", "Image or image family."),
    "container": ("machine", "container", "IMAGE", "Container image to run the command in."),
    "environment": ("environment", "from", "FILE", "File that lists the Python packages; or: none, host, auto."),
    "checkpoint": ("checkpoint", "path", "PATH", "Folder or file that the program writes checkpoints to."),
    "checkpoint-every": ("checkpoint", "every", "TIME", "Minimum time between commits: 5m."),
    "deadline": ("limits", "deadline", "TIME", "End the run after this long: 12h."),
    "cost": ("limits", "cost_usd", "USD", "End the run at this cost in USD."),
    "crashes": ("limits", "crashes", "N", "Crashes that end the run."),
    "hang-after": ("limits", "hang_after", "TIME", "Time without output and checkpoints that counts as a hang."),
}
_COMPLETED = {"cloud": complete_cloud, "image": complete_image}


def spec_options(command: F) -> F:
    """Add an option for every field of `outlast.toml`, and the command as argument."""
    decorators = [
        click.argument("command", nargs=-1, type=click.UNPROCESSED),
        click.option("--file", "-f", "path", type=click.Path(), default="", metavar="PATH",
                     help="File to use instead of outlast.toml."),
        click.option("--name", default="", metavar="NAME", help="Name of the run; a number is appended."),
        click.option("--param", "-p", "params", multiple=True, metavar="NAME=VALUE", help="Parameter."),
        click.option("--env", "-e", "envs", multiple=True, metavar="NAME=VALUE", help="Variable of the command."),
        click.option("--secret", "secrets", multiple=True, metavar="NAME", help="Variable whose value is secret."),
        click.option("--zone", "zones", multiple=True, metavar="ZONE", help="Only this zone; the first is preferred."),
        click.option("--exclude-zone", "excluded", multiple=True, metavar="ZONE", help="Never this zone."),
        click.option("--spot/--on-demand", "spot", default=None, help="Cheap and preemptible, or on demand."),
        click.option("--keep-on-failure", default=None, is_flag=False, flag_value="1h", metavar="[TIME]",
                     help="Keep the machine of a crashed attempt for debugging (1h if no time is given)."),
        click.option("--interactive", is_flag=True, default=None,
                     help="Give the command a terminal, for a debugger; see `outlast attach`."),
        click.option("--data", "data", multiple=True, metavar="PATH=SOURCE",
                     help="Data at PATH in the code folder: a folder, gs://… or s3://…."),
        click.option("--git", "git_ref", default="", metavar="REF",
                     help="Code of this commit, branch or tag of the project's git remote, not of the folder."),
        click.option("--set", "settings", multiple=True, metavar="SECTION.FIELD=VALUE", help="Any other field."),
    ]  # fmt: skip
    for option, (_, _, takes, text) in _FIELDS.items():
        found = _COMPLETED.get(option)
        decorators.append(click.option(f"--{option}", default=None, metavar=takes, shell_complete=found, help=text))
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def group_options(command: F) -> F:
    """Add the options for files with `[tasks]`."""
    decorators = [
        click.option("--task", default="", metavar="TASK", help="Add runs of this task to a running group."),
        click.option("--group", default="", metavar="GROUP", help="Group (the newest live one)."),
        click.option(
            "--count", default=0, metavar="N", type=click.IntRange(0, 1000), help="Number of runs (the task's minimum)."
        ),
    ]
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def overrides_from(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options as tables of a spec file."""
    table: dict[str, Any] = {}
    if options["name"]:
        table["name"] = options["name"]
    for option, (section, field, _, _) in _FIELDS.items():
        value = options[option.replace("-", "_")]
        if value is not None:
            table.setdefault(section, {})[field] = (
                value if field in ("cloud", "type", "image", "container", "path", "from") else typed(value)
            )
    if options["spot"] is not None:
        table.setdefault("machine", {})["spot"] = options["spot"]
    if options["interactive"]:
        table["interactive"] = True
    for option, field in (("zones", "zones"), ("excluded", "exclude_zones")):
        if options[option]:
            table.setdefault("machine", {})[field] = list(options[option])
    if options["keep_on_failure"] is not None:
        table.setdefault("limits", {})["keep_on_failure"] = options["keep_on_failure"]
    for text in options["params"]:
        name, value = parse_assignment(text, option="--param")
        table.setdefault("params", {})[name] = typed(value)
    for text in options["envs"]:
        name, value = parse_assignment(text, option="--env")
        table.setdefault("env", {})[name] = value
    for text in options["data"]:
        place, source = parse_assignment(text, option="--data")
        # Relative to the current folder, unlike the paths of a file.
        table.setdefault("data", {})[place] = source if is_url(source) else os.path.abspath(os.path.expanduser(source))
    if options["git_ref"]:
        table["code"] = {"ref": options["git_ref"]}
    for name in options["secrets"]:
        table.setdefault("secrets", {})[name] = True
    for text in options["settings"]:
        _set(table, text)
    return table


def option_names() -> dict[tuple[str, str], str]:
    """Return the option of each field that has one: (section, field) → option."""
    names = {(section, field): f"--{option}" for option, (section, field, _, _) in _FIELDS.items()}
    return names | {
        ("", "name"): "--name",
        ("machine", "zones"): "--zone",
        ("machine", "exclude_zones"): "--exclude-zone",
        ("machine", "spot"): "--spot",
        ("limits", "keep_on_failure"): "--keep-on-failure",
        ("code", "git"): "--git",
        ("code", "ref"): "--git",
    }


def _set(table: dict[str, Any], text: str) -> None:
    name, value = parse_assignment(text, option="--set")
    *sections, field = name.split(".")
    if len(sections) > 1:
        raise UsageError(f"--set: invalid `{name}`: expected SECTION.FIELD")
    for section in sections:
        table = table.setdefault(section, {})
    table[field] = typed(value)
