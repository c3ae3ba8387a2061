"""The project file of a command: its spec, and problems that name the options of the command line."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from outlast.app import project as app
from outlast.app.project import FILE as FILE
from outlast.app.project import Project as Project
from outlast.app.project import load_project as load_project
from outlast.app.project import read_table as read_table
from outlast.app.project import unreadable as unreadable
from outlast.app.project import with_places as with_places
from outlast.app.project import workspace_url_of as workspace_url_of
from outlast.cli.shared.terminal import note
from outlast.errors import SpecError, UsageError

if TYPE_CHECKING:
    from outlast.spec.spec import Spec


def spec_of(project: Project, overrides: Mapping[str, Any], command: Sequence[str]) -> Spec:
    """Merge the file, the options and the command after `--` into a spec. Raises SpecError with all problems.

    A command line in one argument, such as `-- 'cd src && python train.py'`, is run by bash, as it is in the file.
    """
    return app.spec_of(project, overrides, command[0] if _is_text(command) else command, report=note)


def _is_text(command: Sequence[str]) -> bool:
    """Return whether the command is one argument that names no program: ssh and schedulers take such lines."""
    return len(command) == 1 and len(command[0].split()) > 1 and shutil.which(command[0]) is None


def check_params(table: Mapping[str, Any], overrides: Mapping[str, Any], specs: Sequence[Spec]) -> None:
    """Check that the runs use the parameters of the command line. Raises UsageError for a misspelled one."""
    app.check_params(table, overrides, specs, report=note)


@contextmanager
def blaming_options(overrides: Mapping[str, Any], options: Mapping[tuple[str, str], str]) -> Iterator[None]:
    """Name the option instead of the file in problems of fields that the command line sets."""
    try:
        yield
    except SpecError as problem:
        blamed = [_blamed(text, overrides, options) for text in problem.problems]
        if not any(option for _, option in blamed):
            raise
        only_options = all(option for _, option in blamed)
        source = "command line" if only_options else problem.source
        raise SpecError([text for text, _ in blamed], source=source, hint=problem.hint) from None


@contextmanager
def naming_options(options: Mapping[str, str]) -> Iterator[None]:
    """Name the option instead of the argument in a problem of a use case: `params: …` becomes `--param: …`."""
    try:
        yield
    except UsageError as problem:
        match = re.match(r"\w+", problem.message)
        if match is None or match.group() not in options:
            raise
        raise UsageError(options[match.group()] + problem.message[match.end() :], hint=problem.hint) from None


def _blamed(problem: str, overrides: Mapping[str, Any], options: Mapping[tuple[str, str], str]) -> tuple[str, bool]:
    """Return a problem with the name of its option, and whether an option caused it."""
    match = re.match(r"(?:\[(\w+)\] ?)?(?:\"?([\w./-]+)\"?)?: ", problem)
    if match is None:
        return problem, False
    section, field = match.group(1) or "", match.group(2) or ""
    given = overrides.get(section) if section else overrides
    if not isinstance(given, Mapping) or (field and field not in given):
        return problem, False
    fallback = {"params": "--param", "env": "--env", "secrets": "--secret", "data": "--data"}.get(section, "")
    option = options.get((section, field), fallback)
    if not field:
        # A problem of the whole section, such as a machine that no cloud offers.
        return problem, True
    return (f"{option}: {problem[match.end() :]}" if option else problem), True


def report_source(project: Project) -> None:
    """Report a project file that is not in the current folder: it may be an unexpected one."""
    if project.nearest and project.table and project.folder != os.getcwd():
        note(f"using {project.source}; --file chooses another file")


def parse_assignment(text: str, *, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"{option}: invalid `{text}`: expected NAME=VALUE")
    return name.strip(), value


def typed(text: str) -> Any:
    """Parse a value of the command line as TOML; return the text itself if it is not TOML."""
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
