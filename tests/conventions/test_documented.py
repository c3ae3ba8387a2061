"""Every command, option, field, event, exit code and variable is in the documents, and no document names another."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator

import click
import msgspec
import pytest

from outlast.cli.app import all_commands
from outlast.errors import EXIT_CODES, SpecError
from outlast.runs import events
from outlast.runs.state import AttemptPhase
from outlast.spec.parse import parse
from tests.conventions.sources import ROOT, document, modules, part

# Options that many commands share are explained once.
SHARED = ("## Options of many commands", "## What to run")


ALL_COMMANDS = dict(all_commands())


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_every_command_and_each_of_its_options_is_documented(name: str) -> None:
    text = document("commands.md")
    level = "###" if " " in name else "##"
    own = part(text, f"{level} outlast {name}")
    assert own, f"docs/commands.md has no part `{level} outlast {name}`"
    assert f"outlast {name}" in "\n".join(re.findall(r"```.*?```", own, re.DOTALL)), "missing example"
    shared = "".join(part(text, heading) for heading in SHARED)
    for parameter in ALL_COMMANDS[name].params:
        if not isinstance(parameter, click.Option):
            metavar = parameter.make_metavar(click.Context(ALL_COMMANDS[name])).strip("[].")
            assert metavar in own, f"{name} {metavar} is not documented"
        elif not parameter.hidden:
            for option in [*parameter.opts, *parameter.secondary_opts]:
                assert re.search(rf"`{option}[ `=]", own + shared), f"{name} {option} is not documented"


def test_no_command_is_documented_that_does_not_exist() -> None:
    documented = re.findall(r"^#{2,3} outlast (.+)$", document("commands.md"), re.MULTILINE)
    assert set(documented) == set(ALL_COMMANDS)


def known_fields(table: dict[str, object], where: str) -> list[str]:
    """The fields that the parser knows, from its own complaint about one that it does not."""
    with pytest.raises(SpecError) as raised:
        parse(table)
    for problem in raised.value.problems:
        if problem.startswith(f"{where}?: unknown field; known here: "):
            return problem.partition("known here: ")[2].split(", ")
    return []


def fields() -> Iterator[tuple[str, str]]:
    """Section and name of every field; the section is empty for those at the top."""
    for field in known_fields({"command": "true", "?": 1}, ""):
        yield "", field
        yield from ((field, below) for below in known_fields({"command": "true", field: {"?": 1}}, f"[{field}] "))


ALL_FIELDS = list(fields())


def test_the_parser_lists_its_fields() -> None:
    assert ("machine", "cpus") in ALL_FIELDS
    assert ("", "command") in ALL_FIELDS


@pytest.mark.parametrize(("section", "field"), ALL_FIELDS, ids=lambda name: name or "top")
def test_every_field_of_the_spec_is_documented(section: str, field: str) -> None:
    text = document("spec.md")
    if section:
        assert f"| `{field}` |" in part(text, f"## [{section}]"), f"[{section}] {field} is not in docs/spec.md"
    else:
        assert f"| `{field}` |" in part(text, "## Top level") or part(text, f"## [{field}]"), f"{field} is not there"


def test_no_field_is_documented_that_does_not_exist() -> None:
    text = document("spec.md")
    for section in ("", *{section for section, _ in ALL_FIELDS if section}):
        documented = re.findall(
            r"^\| `([a-z_]+)` \|", part(text, f"## [{section}]" if section else "## Top level"), re.M
        )
        assert set(documented) <= {field for within, field in ALL_FIELDS if within == section}


ALL_EVENTS = list(typing.get_args(events.Event))
COMMON = {"at", "nonce", "by"}


@pytest.mark.parametrize("event", ALL_EVENTS, ids=lambda event: str(event.__name__))
def test_every_event_and_each_of_its_fields_is_documented(event: type[msgspec.Struct]) -> None:
    text = document("events.md")
    own = part(text, f"### {event.__name__}")
    assert own, f"docs/events.md has no part `### {event.__name__}`"
    for field in event.__struct_fields__:
        within = part(text, "## Common fields") if field in COMMON else own
        assert f"`{field}`" in within, f"{event.__name__}.{field} is not documented"


@pytest.mark.parametrize("word", [*typing.get_args(AttemptPhase), *typing.get_args(events.Outcome)])
def test_every_phase_and_outcome_of_an_attempt_is_documented(word: str) -> None:
    assert f"`{word}`" in part(document("events.md"), "## States of an attempt")


@pytest.mark.parametrize("code", EXIT_CODES)
def test_every_exit_code_is_documented(code: int) -> None:
    assert f"| {code} | {EXIT_CODES[code]}" in document("exit-codes.md")


def test_every_variable_is_documented() -> None:
    text = document("environment.md")
    for path in modules():
        for variable in re.findall(r"\b_?OUTLAST_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8")):
            assert variable in text, f"{variable} of {path.name} is not in docs/environment.md"


def test_every_document_is_in_the_index_and_every_link_leads_somewhere() -> None:
    for index in (ROOT / "docs").rglob("README.md"):
        text = index.read_text(encoding="utf-8")
        for path in index.parent.glob("*.md"):
            known = path.name in ("README.md", "index.md") or f"({path.name})" in text
            assert known, f"{index.relative_to(ROOT)} does not name {path.name}"
    for path in (ROOT / "docs").rglob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8")):
            assert "://" in target or (path.parent / target).exists(), f"{path.name} links to {target}"


def test_every_file_that_the_architecture_names_is_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"[a-z_*]+(?:/[a-z_*]+)+\.py", text))
    assert named
    for path in named:
        assert any(list(base.glob(path)) for base in (ROOT, ROOT / "src", ROOT / "src" / "outlast")), (
            f"no such file: {path}"
        )
