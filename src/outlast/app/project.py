"""The project file: finds `outlast.toml` or `[tool.outlast]`, and merges given fields into it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outlast import private
from outlast.errors import SpecError, UsageError
from outlast.store.traits import is_url
from outlast.workspace import DEFAULT as DEFAULT
from outlast.workspace import Workspace, open_workspace

if TYPE_CHECKING:
    from outlast.spec.spec import Spec

FILE = "outlast.toml"


class Project:
    """The table of a project file and its location; `nearest` unless the user named the file."""

    def __init__(self, table: dict[str, Any], *, folder: str, source: str, nearest: bool = True) -> None:
        self.table = table
        self.folder = folder
        self.source = source
        self.nearest = nearest

    @property
    def name(self) -> str:
        """The default name of its runs."""
        return str(self.table.get("name") or _name_from(os.path.basename(self.folder)))


def load_project(path: str = "") -> Project:
    """Load a file, or the nearest `outlast.toml` or `pyproject.toml` with `[tool.outlast]` from here upwards."""
    if path:
        if not os.path.isfile(path):
            why = f"`{path}` is a folder; name a file in it" if os.path.isdir(path) else f"no such file: `{path}`"
            raise UsageError(why, hint="`outlast init` writes one")
        folder = os.path.dirname(os.path.abspath(path))
        return Project(read_table(path), folder=folder, source=path, nearest=False)
    folder = os.getcwd()
    while True:
        found = _in_folder(folder)
        if found is not None:
            return found
        parent = os.path.dirname(folder)
        if parent == folder:
            return Project({}, folder=os.getcwd(), source="command line")
        folder = parent


def _in_folder(folder: str) -> Project | None:
    path = os.path.join(folder, FILE)
    if os.path.isfile(path):
        return Project(read_table(path), folder=folder, source=os.path.relpath(path))
    path = os.path.join(folder, "pyproject.toml")
    if os.path.isfile(path):
        table = read_table(path).get("tool", {}).get("outlast")
        if isinstance(table, dict):
            return Project(table, folder=folder, source=os.path.relpath(path) + " [tool.outlast]")
    return None


def packages_text(folder: str) -> str:
    """Describe the file from which machines get their Python packages."""
    from outlast.environments.detect import detect

    found = detect(folder)
    if not found.file:
        return "found no uv.lock and no requirements.txt: machines of a cloud have Python without packages"
    if found.kind == "conda":
        return f"found {found.file}: it needs a machine image with micromamba or conda; default images have neither"
    return f"found {found.file}: machines of a cloud get its packages, with Python {found.python}"


def read_table(path: str) -> dict[str, Any]:
    import tomllib  # imported late: most commands find no file to read

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except tomllib.TOMLDecodeError as problem:
        raise SpecError([f"invalid TOML: {problem}"], source=path) from problem
    except (OSError, UnicodeDecodeError) as problem:
        raise SpecError([unreadable(problem)], source=path, hint="is it the right file?") from problem


def unreadable(problem: OSError | UnicodeDecodeError) -> str:
    """Return why a file cannot be read, without its path."""
    if isinstance(problem, IsADirectoryError):
        return "is a folder; name a file in it"
    if isinstance(problem, FileNotFoundError):
        return "does not exist"
    if isinstance(problem, PermissionError):
        return "cannot be read: permission denied"
    if isinstance(problem, OSError):
        return f"cannot be read: {problem.strerror}"
    return f"is not text: byte {problem.start} is not UTF-8"


def find_workspace(url: str, project: Project | None = None) -> Workspace:
    """Open the given workspace, or that of the environment, the nearest project file or the default, in this order.

    `project` is the project file if the caller has loaded it already.
    """
    private.close_home()
    if not url and not os.environ.get("OUTLAST_WORKSPACE"):
        url = workspace_url_of(project if project and project.nearest else load_project())
    return open_workspace(url)


def workspace_url_of(project: Project) -> str:
    """Return the workspace that the project file names; empty if it names none."""
    where = project.table.get("workspace", "")
    if not where:
        from outlast.app.user_config import user_config

        return os.path.expanduser(str(user_config().get("workspace", "")))
    if not isinstance(where, str):
        raise SpecError([f"workspace: expected text, got {where!r}"], source=project.source)
    if where and not is_url(where) and not where.startswith(("/", "~")):
        return os.path.join(project.folder, where)
    return where


Report = Callable[[str], None]


class FieldNames:
    """How a caller names the fields in messages: as options of a command, or as arguments of a function."""

    def __init__(self, *, param: str, ref: str) -> None:
        self.param = param
        self.ref = ref


OPTIONS = FieldNames(param="--param", ref="--git")
ARGUMENTS = FieldNames(param="params", ref="code: ref")


def spec_of(
    project: Project,
    overrides: Mapping[str, Any],
    command: Sequence[str] | str,
    *,
    report: Report,
    names: FieldNames = OPTIONS,
) -> Spec:
    """Merge the file, the given fields and the command into a spec. Raises SpecError with all problems."""
    from outlast.app.user_config import user_config, with_defaults
    from outlast.spec.parse import parse
    from outlast.spec.tasks import merged

    table = with_defaults(merged(_at_remote(project, overrides, names), overrides), user_config())
    table = with_places(project, table)
    if command:
        table["command"] = command if isinstance(command, str) else list(command)
    if "tasks" in table:
        raise UsageError(
            f"{project.source} has `[tasks]`: this command works on one run",
            hint="`outlast run` and `outlast submit` start all of them",
        )
    spec = parse(table, source=project.source)
    if spec.sweep is None:  # a sweep appends parameters as flags
        check_params(project.table, overrides, [spec], report=report, names=names)
    return spec


def check_params(
    table: Mapping[str, Any],
    overrides: Mapping[str, Any],
    specs: Sequence[Spec],
    *,
    report: Report,
    names: FieldNames = OPTIONS,
) -> None:
    """Check that the runs use the given parameters. Raises UsageError for a misspelled one."""
    from outlast.spec.command import script_of, unused_params

    if not overrides.get("params"):
        return
    tables = [table, *(task for task in table.get("tasks", {}).values() if isinstance(task, dict))]
    declared = [name for one in tables for name in one.get("params", {})]
    scripts = [_text(os.path.join(spec.code.path, script)) for spec in specs if (script := script_of(spec.command))]
    commands = [spec.command for spec in specs]
    for name, near in unused_params(overrides["params"], declared=declared, commands=commands, scripts=scripts).items():
        if near:
            raise UsageError(f"{names.param}: unknown parameter `{name}`", hint=f"did you mean `{near}`?")
        variable = "OUTLAST_PARAM_" + re.sub(r"[^A-Za-z0-9]", "_", name).upper()
        report(
            f"warning: the command has no `{{{name}}}`; only a program that reads {variable} uses parameter `{name}`"
        )


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1_000_000)
    except OSError:
        return ""


def _at_remote(project: Project, overrides: Mapping[str, Any], names: FieldNames) -> Mapping[str, Any]:
    """Return the table with the project's git remote instead of its folder, if a ref is given without a repository."""
    code = project.table.get("code", {})
    given = overrides.get("code", {})
    if "ref" not in given or "git" in given or (isinstance(code, dict) and "git" in code):
        return project.table
    from outlast.code.git import remote_url

    url = remote_url(project.folder)
    if not url:
        raise UsageError(
            f"{names.ref}: {project.folder} has no git remote `origin`", hint="`git remote add origin URL`, then push"
        )
    return {**project.table, "code": {"git": url}}


def with_places(project: Project, table: Mapping[str, Any], *, bare: bool = False) -> dict[str, Any]:
    """Return the table with a name and with paths relative to the file's folder; `bare` adds no defaults."""
    table = dict(table)
    if "name" not in table and not bare:
        table["name"] = _name_from(os.path.basename(project.folder))
    code = table.get("code", {})
    if isinstance(code, dict) and "git" not in code and not (bare and "path" not in code):
        path = code.get("path", ".")
        if isinstance(path, str):
            table["code"] = {**code, "path": os.path.join(project.folder, os.path.expanduser(path))}
    data = table.get("data", {})
    if isinstance(data, dict) and (data or not bare):
        table["data"] = {place: _absolute(project.folder, where) for place, where in data.items()}
    return table


def _absolute(folder: str, where: Any) -> Any:
    if not isinstance(where, str) or is_url(where) or not where:
        return where
    return os.path.normpath(os.path.join(folder, os.path.expanduser(where)))


def _name_from(text: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].rstrip("-")
    return name if re.match(r"^[a-z]", name) else "run"
