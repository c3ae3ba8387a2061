"""`outlast config`: the settings that apply here, each with the file, variable or default that it comes from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import click
import msgspec

from outlast.app.project import DEFAULT
from outlast.app.user_config import config_path, user_config
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import json_option
from outlast.cli.shared.project import load_project
from outlast.cli.shared.terminal import note, table
from outlast.clouds.traits import DEFAULT_CLOUD
from outlast.spec.network import VARIABLE


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting, its value and where it comes from."""

    name: str
    value: Any
    source: str


@command(section="admin", interrupt=READ_ONLY, json="SettingList")
@click.option("--schema", is_flag=True, help="Print the JSON schema of outlast.toml, for editors.")
@json_option
def config(schema: bool, as_json: bool) -> int:
    """Show the settings that apply here, and where each comes from.

    A project file overrides the user's file, a variable of the environment both, and an option of a command all.
    """
    if schema:
        click.echo(
            resources.files("outlast.spec").joinpath("outlast.schema.json").read_text(encoding="utf-8"), nl=False
        )
        return 0
    path = config_path(os.environ)
    found = list(settings(os.environ))
    if as_json:
        import json

        rows = [msgspec.structs.asdict(one) for one in found]
        click.echo(json.dumps({"user_file": path, "exists": os.path.isfile(path), "settings": rows}, indent=2))
        return 0
    click.echo(table([[one.name, _text(one.value), one.source] for one in found], header=["SETTING", "VALUE", "FROM"]))
    if not os.path.isfile(path):
        note(f"no user file {path}: it would hold your defaults for all projects")
    return 0


def settings(environment: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the settings, in the order of the documentation."""
    project, user, path = load_project(), user_config(environment), config_path(environment)
    machine = project.table.get("machine", {})
    yield _first(
        "workspace",
        (environment.get("OUTLAST_WORKSPACE"), "OUTLAST_WORKSPACE"),
        (project.table.get("workspace"), project.source),
        (user.get("workspace"), path),
        (DEFAULT, "default"),
    )
    yield _first(
        "cloud",
        (machine.get("cloud") if isinstance(machine, dict) else None, project.source),
        (user.get("cloud"), path),
        (DEFAULT_CLOUD, "default"),
    )
    if environment.get(VARIABLE):
        yield Setting(name=VARIABLE, value=environment[VARIABLE], source="environment")
    own, below = (_sections(one) for one in (project.table, user))
    for section in sorted({*own, *below}):
        fields = {**below.get(section, {}), **own.get(section, {})}
        for field, value in sorted(fields.items()):
            source = project.source if field in own.get(section, {}) else path
            yield Setting(name=f"{section}.{field}", value=value, source=source)


def _sections(table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tables whose fields a project may override one by one."""
    clouds = {f"clouds.{name}": one for name, one in _tables(table.get("clouds", {})).items()}
    return clouds | _tables({name: table[name] for name in ("notify", "retention") if name in table})


def _tables(clouds: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(clouds, dict):
        return {}
    return {str(name): one for name, one in clouds.items() if isinstance(one, dict)}


def _first(name: str, *candidates: tuple[Any, str]) -> Setting:
    """Return the first value that is set."""
    value, source = next((value, source) for value, source in candidates if value)
    return Setting(name=name, value=value, source=source)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return ", ".join(f"{name}={one}" for name, one in value.items())
    return str(value)
