"""Commands are consistent: the same verbs, flags, metavars and table headers everywhere."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

import click
import pytest

from outlast.cli.main import COMMANDS
from outlast.cli.shared.command import OutlastCommand, OutlastGroup
from tests.conventions.sources import PACKAGE, modules, shown, tree
from tests.conventions.test_documented import ALL_COMMANDS

# Commands that print information; programs read it with --json.
LISTINGS = {"list", "ls", "ps", "show", "status", "jobs", "zones", "machines", "check", "best", "env"}
LISTINGS |= {"doctor", "cost", "prices", "limits", "plan", "compare", "simulate", "reap", "drill"}

# First words of a noun phrase; help starts with a verb.
NAMES = {"A", "An", "The", "Every", "Everything", "All", "What", "Who", "Ray's", "Google's"}

# Flag → why it takes a value in one command and none in another.
BOTH_WAYS = {
    "--json": "a file in `verify`, which prints its steps as they end",
    "--pull": "a folder in `run` and `burst`, a direction in `sync`",
    "--wait": "`cluster submit` waits without a limit, others take a duration",
    "--watch": "a folder in `machine keep`",
}
# Short flag → its long forms: one meaning each, except `-f`, as in `tail -f` and `make -f`.
SHORT = {
    "-a": {"--all"},
    "-c": {"--command"},
    "-d": {"--detach"},
    "-e": {"--env"},
    "-f": {"--file", "--follow"},
    "-h": {"--help"},
    "-m": {"--metric"},
    "-p": {"--param"},
    "-q": {"--quiet"},
    "-t": {"--tty"},
    "-w": {"--workspace"},
    "-y": {"--yes"},
}
# Option → its metavar, in every command.
TAKES = {
    "--axis": "NAME=V1,V2",
    "--cloud": "NAME",
    "--cpus": "N",
    "--disk": "SIZE",
    "--env": "NAME=VALUE",
    "--file": "PATH",
    "--gpu": "KIND",
    "--image": "NAME",
    "--memory": "SIZE",
    "--param": "NAME=VALUE",
    "--png": "FILE",
    "--port": "N",
    "--size": "SIZE",
    "--type": "NAME",
    "--user": "USER",
    "--workspace": "WHERE",
    "--zone": "ZONE",
}


def options() -> Iterator[tuple[str, click.Option]]:
    for name, command in ALL_COMMANDS.items():
        yield from ((name, param) for param in command.params if isinstance(param, click.Option))


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_the_help_of_a_command_is_a_sentence_that_begins_with_a_verb(name: str) -> None:
    command = ALL_COMMANDS[name]
    first = inspect.cleandoc(command.help or "").split("\n")[0]
    assert first.endswith("."), f"{name}: {first}"
    assert first[0].isupper(), f"{name}: {first}"
    if not isinstance(command, click.Group):
        assert first.split()[0] not in NAMES, f"outlast {name}: does not start with a verb: {first}"


def test_the_static_table_agrees_with_the_declared_commands() -> None:
    for name, (_, _, section, summary) in COMMANDS.items():
        command = ALL_COMMANDS[name]
        assert isinstance(command, OutlastCommand | OutlastGroup)
        assert command.section == section, name
        first = inspect.cleandoc(command.help or "").split("\n")[0]
        assert first == f"{summary[0].upper()}{summary[1:]}.", name
    for name, command in ALL_COMMANDS.items():
        if " " in name:
            assert isinstance(command, OutlastCommand), name
            assert command.section is None, name


def test_the_help_of_an_option_is_a_sentence() -> None:
    for name, option in options():
        text = option.help or ""
        assert option.hidden or re.match(r"[A-Z`]", text), f"outlast {name} {option.opts[0]}: {text}"
        assert option.hidden or text.endswith("."), f"outlast {name} {option.opts[0]}: {text}"


def test_every_listing_has_json() -> None:
    for name, command in ALL_COMMANDS.items():
        if name.split()[-1] in LISTINGS and not isinstance(command, click.Group):
            assert any("--json" in param.opts for param in command.params), f"outlast {name} has no --json"


def test_an_option_with_a_value_has_a_metavar() -> None:
    for name, option in options():
        if not option.is_flag and not option.hidden and not isinstance(option.type, click.Choice):
            assert option.metavar, f"outlast {name} {option.opts[0]} has no metavar"
            assert option.metavar == TAKES.get(option.opts[0], option.metavar), f"outlast {name} {option.opts[0]}"


def test_a_flag_is_a_flag_everywhere() -> None:
    kinds: dict[str, dict[bool, list[str]]] = {}
    for name, option in options():
        for flag in (flag for flag in option.opts if flag.startswith("--")):
            kinds.setdefault(flag, {}).setdefault(option.is_flag, []).append(name)
    both = {flag: found for flag, found in kinds.items() if len(found) > 1}
    assert set(both) <= set(BOTH_WAYS), both


def test_a_short_flag_has_one_meaning() -> None:
    for name, option in options():
        letters = [flag for flag in option.opts if not flag.startswith("--")]
        long = {flag for flag in option.opts if flag.startswith("--")}
        for letter in letters:
            assert letter in SHORT, f"outlast {name} {letter}: a new letter"
            assert long & SHORT[letter], f"outlast {name} {letter} is {long}, elsewhere {SHORT[letter]}"


def test_a_command_that_asks_has_a_yes_option() -> None:
    for name, command in ALL_COMMANDS.items():
        asks = "asks first" in (command.help or "")
        has = any("--yes" in param.opts for param in command.params)
        assert has or not asks, f"outlast {name} asks, and has no --yes"
        if name.split()[-1] == "delete":
            assert has, f"outlast {name} has no --yes"


def test_resources_are_created_listed_shown_and_deleted_by_the_same_verbs() -> None:
    strangers = {"describe", "get", "info", "remove", "rm", "destroy", "new", "add", "view"}
    assert not {name for name in ALL_COMMANDS if name.split()[-1] in strangers}


def test_table_headers_are_upper_case() -> None:
    heads: list[str] = []
    for path in modules(PACKAGE / "cli"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.keyword) and node.arg == "header":
                argv = [item.value for item in ast.walk(node.value) if isinstance(item, ast.Constant)]
                heads += [f"{shown(path)}: {word}" for word in argv if isinstance(word, str) and word != word.upper()]
    assert not heads
