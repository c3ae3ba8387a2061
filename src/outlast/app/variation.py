"""A new run like an earlier one or like a project file, with some fields changed: for the form of the dashboard.

A form shows fields as text. Only fields whose text was changed are parsed, so that a form changes nothing by itself.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.app.background import ensure_supervised, start_supervisor
from outlast.app.clouds import clouds
from outlast.app.project import FILE, load_project, read_table, spec_of
from outlast.errors import OutlastError, SpecError, UsageError
from outlast.spec.command import render_param
from outlast.spec.parse import parse
from outlast.spec.requirements import Range

if TYPE_CHECKING:
    from outlast.spec.spec import Spec
    from outlast.workspace import RunRequest, Workspace

# Field of `[machine]` → the attributes of the spec that it sets; likewise of `[limits]`.
MACHINE = {
    "cloud": ("cloud", "other_clouds"),
    "type": ("type",),
    "cpus": ("cpus",),
    "memory": ("memory_gb",),
    "gpu": ("gpu", "gpus", "other_gpus"),
    "disk": ("disk_gb",),
    "zones": ("zones",),
    "nodes": ("nodes",),
    "spot": ("spot",),
    "fallback": ("fallback",),
}
LIMITS = {
    "cost_usd": ("cost_usd",),
    "deadline": ("deadline_s", "deadline_at"),
    "work": ("work_s",),
    "steps": ("steps",),
    "max_hours": ("max_s",),
    "crashes": ("crashes",),
}
# Arguments that need no quotes.
_PLAIN = re.compile(r"[\w@%+=:,./{}-]+")
_LISTS, _SWITCHES = ("cloud", "zones"), ("spot", "fallback")
_NUMBERS = ("nodes", "cost_usd", "steps", "max_hours", "crashes")


def texts_of(spec: Spec) -> dict[str, str]:
    """Return the fields of a form: `name`, `command`, `params.lr`, `machine.cpus`, `limits.work` …"""
    machine, limits = spec.machine, spec.limits
    own = {
        "cloud": ", ".join(machine.clouds),
        "type": machine.type,
        "cpus": _range(machine.cpus),
        "memory": _range(machine.memory_gb, "GB"),
        "gpu": ", ".join(map(str, machine.gpu_choices)),
        "disk": f"{machine.disk_gb:g}GB",
        "zones": ", ".join(machine.zones),
        "nodes": str(machine.nodes),
        "spot": render_param(machine.spot),
        "fallback": render_param(machine.fallback),
    }
    caps = {
        "cost_usd": f"{limits.cost_usd:g}" if limits.cost_usd else "",
        "deadline": _deadline(limits.deadline_s, limits.deadline_at),
        "work": _duration(limits.work_s),
        "steps": str(limits.steps) if limits.steps else "",
        "max_hours": f"{limits.max_s / 3600:g}" if limits.max_s else "",
        "crashes": str(limits.crashes),
    }
    return {
        "name": spec.name,
        "command": spec.command if isinstance(spec.command, str) else " ".join(map(_quoted, spec.command)),
        **{f"params.{name}": render_param(value) for name, value in spec.params.items()},
        **{f"machine.{name}": text for name, text in own.items()},
        **{f"limits.{name}": text for name, text in caps.items()},
    }


def _quoted(part: str) -> str:
    """Quote an argument; `{name}` of a parameter stays readable."""
    return part if _PLAIN.fullmatch(part) else shlex.quote(part)


def _argv(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as problem:
        raise SpecError([f"command: {problem}"]) from problem


def _range(found: Range, unit: str = "") -> str:
    """Return a range as a spec file states it: `8+`, `32GB..80GB`; empty for any."""
    if not found.low and found.high is None:
        return ""
    if found.high is None:
        return f"{found.low:g}{unit}+"
    return f"{found.low:g}{unit}" if found.low == found.high else f"{found.low:g}{unit}..{found.high:g}{unit}"


def _duration(seconds: float) -> str:
    if not seconds:
        return ""
    for unit, size in (("h", 3600.0), ("m", 60.0)):
        if seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def _deadline(seconds: float, at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if at else _duration(seconds)


def changed(spec: Spec, texts: Mapping[str, str], *, source: str) -> Spec:
    """Return the spec with the fields whose text differs. Raises SpecError with all problems."""
    before = texts_of(spec)
    news = {name: text.strip() for name, text in texts.items() if name in before and text.strip() != before[name]}
    params = {name: _param(texts[f"params.{name}"]) for name in spec.params if f"params.{name}" in news}
    table: dict[str, Any] = {"name": spec.name, "command": "true", "params": {**spec.params, **params}}
    for name, text in news.items():
        place, _, field = name.rpartition(".")
        if place in ("machine", "limits") and text:
            table.setdefault(place, {})[field] = _value(field, text)
        elif not place:
            table[field] = _argv(text) if field == "command" and not isinstance(spec.command, str) else text
    parsed = parse(table, source=source)
    return msgspec.structs.replace(
        spec,
        name=parsed.name if "name" in news else spec.name,
        command=parsed.command if "command" in news else spec.command,
        params={**spec.params, **parsed.params},
        machine=_with_changes(spec.machine, parsed.machine, MACHINE, "machine", news),
        limits=_with_changes(spec.limits, parsed.limits, LIMITS, "limits", news),
    )


def _with_changes(
    old: Any, new: Any, fields: Mapping[str, tuple[str, ...]], place: str, news: Mapping[str, str]
) -> Any:
    """Return `old` with the attributes of changed fields; an emptied field gets its default."""
    wanted = [attribute for field, them in fields.items() if f"{place}.{field}" in news for attribute in them]
    emptied = {attribute for field, them in fields.items() if news.get(f"{place}.{field}") == "" for attribute in them}
    default = type(old)()
    values = {name: getattr(default if name in emptied else new, name) for name in wanted}
    return msgspec.structs.replace(old, **values)


def _value(field: str, text: str) -> object:
    """Return the value of a field as a spec file has it; text that is none of its kind stays, and is refused there."""
    if field in _LISTS:
        found = [part.strip() for part in text.split(",") if part.strip()]
        return found[0] if field == "cloud" and len(found) == 1 else found
    if field in _SWITCHES and text in ("true", "false"):
        return text == "true"
    return _param(text) if field in _NUMBERS else text


def _param(text: str) -> str | int | float | bool:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def project_files(folder: str) -> list[str]:
    """Return the names of the files in a folder that define a run."""
    found = []
    for name in sorted(os.listdir(folder), key=lambda name: (name != FILE, name)):
        if name.endswith(".toml"):
            try:
                table = read_table(os.path.join(folder, name))
            except OutlastError:
                continue
            if "command" in table or (name == "pyproject.toml" and "outlast" in table.get("tool", {})):
                found.append(name)
    return found


class Origin:
    """The earlier run, or the file of the current folder, that a new run is like."""

    def __init__(self, workspace: Workspace, *, run: str = "", file: str = "") -> None:
        self.workspace = workspace
        self.run = run
        self.file = file
        self.spec = self._read()

    def _read(self) -> Spec:
        if self.run:
            return self.workspace.request(self.run).spec
        # The browser chooses among these names; any other file of this computer is none of its business.
        if self.file not in project_files(os.getcwd()):
            raise UsageError(
                f"`{self.file}` in {os.getcwd()} does not define a run", hint="name a file with a `command`"
            )
        return spec_of(load_project(self.file), {}, (), report=lambda _: None)

    def varied(self, texts: Mapping[str, str]) -> Spec:
        return changed(self.spec, texts, source=self.run or self.file)

    def submit(self, texts: Mapping[str, str], *, report: Callable[[str], None] = lambda _: None) -> RunRequest:
        """Submit the changed spec: with the code of the earlier run, or with that of the file's folder."""
        from outlast.submit.run import resubmit, submit

        spec, there = self.varied(texts), clouds(self.workspace)
        if spec.sweep is not None or spec.member is not None:
            kind = "a sweep" if spec.sweep is not None else "a run of a group"
            raise SpecError(
                [f"{kind} cannot be started here"], source=self.run or self.file, hint="use the command line"
            )
        with ensure_supervised(self.workspace):
            if self.run:
                code = self.workspace.request(self.run).code
                made = resubmit(self.workspace, there, spec, code, what=self.run, environment=os.environ)
            else:
                made = submit(self.workspace, there, spec, environment=os.environ, source=self.file, report=report)
            start_supervisor(self.workspace)
        return made
