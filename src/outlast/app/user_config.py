"""The user's configuration file: defaults for workspace, clouds, networks, images, notifications and retention.

Finds `config.toml` in `$XDG_CONFIG_HOME/outlast`, else in `~/.config/outlast`. The file is optional.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import Any

from outlast.errors import SpecError

_NO_CLOUDS: tuple[str, ...] = ()
_HINT = "see docs/configuration.md"


def config_path(environment: Mapping[str, str]) -> str:
    """Return the path of the user's configuration file, which need not exist."""
    base = environment.get("XDG_CONFIG_HOME", "")
    # The specification of XDG ignores relative paths.
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.config")
    return os.path.join(base, "outlast", "config.toml")


def user_config(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the table of the file; empty without one. Raises SpecError."""
    path = config_path(os.environ if environment is None else environment)
    if not os.path.isfile(path):
        return {}
    from outlast.app.project import read_table

    table = read_table(path)
    problems = check(table)
    if problems:
        raise SpecError(problems, source=path, hint=_HINT)
    return table


def check(table: Mapping[str, Any]) -> list[str]:
    """Return the problems of the file's table."""
    from outlast.spec import fields
    from outlast.spec.network import read_clouds
    from outlast.spec.notify import read_notify
    from outlast.spec.reader import Reader, of, text
    from outlast.spec.retention import read_retention

    reader = Reader(table)
    reader.take("workspace", text, "")
    reader.take("cloud", fields.clouds, _NO_CLOUDS)
    read_clouds(reader.section_of("clouds"))
    reader.take("environment", of(dict), {})
    read_notify(reader.section_of("notify"))
    read_retention(reader.section_of("retention"))
    reader.finish()
    return reader.problems


def with_defaults(table: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of a project with the user's defaults for what it leaves out."""
    merged = dict(table)
    machine = merged.get("machine", {})
    if "cloud" in defaults and isinstance(machine, dict) and "cloud" not in machine:
        merged["machine"] = {**machine, "cloud": defaults["cloud"]}
    for section in ("clouds", "environment", "notify", "retention"):
        own = merged.get(section, {})
        if section in defaults and isinstance(own, dict):
            merged[section] = _deep(defaults[section], own)
    return merged


def export_networks(environment: MutableMapping[str, str]) -> None:
    """Set the network settings of the files for machines that no run owns; a variable that is set wins."""
    from outlast.app.project import load_project
    from outlast.errors import OutlastError
    from outlast.spec.network import VARIABLE, read_clouds, to_environment
    from outlast.spec.reader import Reader

    if VARIABLE in environment:
        return
    try:
        table = with_defaults(load_project().table, user_config(environment))
    except OutlastError:
        return  # a command that needs the file reports it
    if value := to_environment(read_clouds(Reader(table).section_of("clouds"))):
        environment[VARIABLE] = value


def _deep(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return both tables as one; fields of the one above win, and tables are merged."""
    merged = dict(below)
    for name, value in above.items():
        known = merged.get(name)
        merged[name] = _deep(known, value) if isinstance(known, Mapping) and isinstance(value, Mapping) else value
    return merged
