"""Submission from a program: the fields of `outlast.toml` as values, a file, or both."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outlast.app.background import ensure_supervised, start_supervisor
from outlast.app.clouds import clouds
from outlast.app.project import ARGUMENTS, Project, load_project, spec_of
from outlast.errors import SpecError
from outlast.store.traits import is_url

if TYPE_CHECKING:
    from outlast.spec.spec import Spec
    from outlast.workspace import RunRequest, Workspace

SOURCE = "arguments"
# Fields of `[machine]` that callers may also give at the top, as options of the command line.
MACHINE_FIELDS = (
    "cloud", "cpus", "memory", "gpu", "disk", "spot", "fallback", "type", "container", "zones", "exclude_zones",
    "reservation", "nodes",
)  # fmt: skip
TABLES = (
    "params", "env", "secrets", "machine", "code", "environment", "data", "volumes", "databases", "checkpoint",
    "outputs", "limits", "clouds", "notify", "retention",
)  # fmt: skip
SCALARS = ("name", "setup", "interactive", "exclusive")
# Known here for suggestions; the reader of spec files has the last word on every other name.
FIELDS = (*SCALARS, *TABLES, *MACHINE_FIELDS, "image")
# Tables that may be given as text, with the field that the text sets.
_MAIN_FIELD = {"checkpoint": "path", "outputs": "path", "code": "path", "environment": "from"}

Report = Callable[[str], None]


def submit_fields(
    workspace: Workspace,
    command: str | Sequence[str] | None,
    fields: Mapping[str, Any],
    *,
    project: Project,
    report: Report = lambda _: None,
) -> RunRequest:
    """Validate, store and submit a run, and ensure that a supervisor runs. Raises SpecError with all problems."""
    spec = spec_of_fields(command, fields, project=project, report=report)
    with ensure_supervised(workspace):
        request = submit_spec(workspace, spec, source=project.source, report=report)
        start_supervisor(workspace)
    return request


def submit_spec(workspace: Workspace, spec: Spec, *, source: str, report: Report = lambda _: None) -> RunRequest:
    """Validate, store and submit a run. The caller ensures that a supervisor runs. Raises SpecError."""
    from outlast.submit.run import submit

    return submit(workspace, clouds(workspace), spec, environment=os.environ, source=source, report=report)


def project_of(file: str) -> Project:
    """Return the named file, or an empty project in the current folder: a program reads no file by chance."""
    if file:
        return load_project(file)
    return Project({}, folder=os.getcwd(), source=SOURCE, nearest=False)


def spec_of_fields(
    command: str | Sequence[str] | None, fields: Mapping[str, Any], *, project: Project, report: Report
) -> Spec:
    """Return the spec of a file and fields. Raises SpecError with the problems of all of them."""
    table, problems = table_of(fields)
    try:
        argv = _command(command)
        spec = spec_of(project, table, argv, report=report, names=ARGUMENTS)
    except SpecError as problem:
        raise SpecError([*problems, *problem.problems], source=problem.source, hint=problem.hint) from None
    if spec.image is not None:
        problems.append("image: a recipe must be built first; pass the name of an image as text")
    if problems:
        raise SpecError(problems, source=project.source, hint="see docs/python.md")
    return spec


def _command(command: str | Sequence[str] | None) -> str | Sequence[str]:
    if command is None:
        return ""
    if isinstance(command, str):
        if not command.strip():
            raise SpecError(["command: must not be empty"], source=SOURCE)
        return command
    argv = [os.fspath(part) if isinstance(part, os.PathLike) else part for part in command]
    if not argv or not all(isinstance(part, str) for part in argv):
        raise SpecError([f"command: expected text or a list of text, got {command!r}"], source=SOURCE)
    return argv


def table_of(fields: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the fields as tables of a spec file, and the problems of fields that have no place there."""
    table: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in fields.items():
        close = [] if name in FIELDS else difflib.get_close_matches(name, FIELDS, n=1)
        if close:
            problems.append(f"{name}: unknown argument; did you mean `{close[0]}`?")
        elif value is not None and (name not in MACHINE_FIELDS and name != "image"):
            table[name] = _placed(name, plain(value))
    image = plain(fields.get("image"))
    given = {name: plain(fields[name]) for name in MACHINE_FIELDS if fields.get(name) is not None}
    if isinstance(image, str):
        given["image"] = image
    elif image is not None:
        table["image"] = image
    if given:
        machine = table.setdefault("machine", {})
        if isinstance(machine, Mapping):
            twice = sorted(machine.keys() & given.keys())
            problems += [f"{name}: given twice, as an argument and in `machine`" for name in twice]
            table["machine"] = {**machine, **given}
    return table, problems


def _placed(name: str, value: Any) -> Any:
    """Return the value of a table; text stands for its main field, and paths are relative to the current folder."""
    if isinstance(value, str) and name in _MAIN_FIELD:
        value = {_MAIN_FIELD[name]: value}
    if name == "secrets" and isinstance(value, list):
        value = dict.fromkeys(map(str, value), True)
    if name == "env" and isinstance(value, dict):
        # An environment holds text only; a number is unambiguous.
        value = {key: str(one) if type(one) in (int, float) else one for key, one in value.items()}
    if name == "code" and isinstance(value, dict) and isinstance(value.get("path"), str):
        value = {**value, "path": _absolute(value["path"])}
    if name == "data" and isinstance(value, dict):
        value = {place: _absolute(source) if isinstance(source, str) else source for place, source in value.items()}
    return value


def _absolute(path: str) -> str:
    return path if not path or is_url(path) else os.path.abspath(os.path.expanduser(path))


def plain(value: Any) -> Any:
    """Return a value as the reader of spec files expects it: dictionaries, lists, text, numbers and booleans.

    Accepts typed objects (dataclasses, structs), paths, tuples and scalars of numpy.
    """
    if not isinstance(value, type) and hasattr(value, "__struct_fields__"):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items() if one is not None}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if not isinstance(value, str | int | float | bool) and callable(getattr(value, "item", None)):
        return value.item()
    return value
