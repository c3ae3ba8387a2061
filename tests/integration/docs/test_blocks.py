"""Commands in the documents exist, and files in them are valid."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

from outlast.app import user_config
from outlast.cli.app import app
from outlast.spec.cluster import parse_cluster
from outlast.spec.parse import parse
from outlast.spec.tasks import parse_tasks
from tests.conventions.sources import shown
from tests.integration.docs.blocks import PAGES, Block, blocks, commands

ALL = [block for page in PAGES for block in blocks(page)]
LANGUAGES = {"", "sh", "toml", "python", "json", "yaml", "text"}
WORDS = {"sh": {"needs", "background"}, "python": {"file"}, "toml": {"file"}, "yaml": {"file"}, "json": {"file"}}
# Optional requirements of a block.
NEEDS = {
    "account",
    "aws",
    "clone",
    "gcloud",
    "gcp",
    "half-a-minute",
    "index",
    "mariadb",
    "names",
    "ray",
    "sshd",
    "time",
}


def of(*languages: str) -> list[Block]:
    return [block for block in ALL if block.language in languages]


def check(argv: list[str]) -> None:
    """Parse as click would, down to the last group, and run nothing. Raises click.UsageError."""
    command: click.Command = app
    context = app.make_context("outlast", list(argv))
    while isinstance(command, click.Group):
        # Arguments that click keeps for the subcommand.
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        name, below, rest = command.resolve_command(context, rest)
        assert below is not None
        command = below
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("block", of("", "sh", "text"), ids=lambda block: block.where)
def test_every_command_and_option_exists(block: Block) -> None:
    for argv in commands(block):
        try:
            check(argv)
        except click.exceptions.Exit:
            pass  # `--help`
        except click.UsageError as problem:
            pytest.fail(f"{block.where}: outlast {' '.join(argv)}: {problem.format_message()}")


def test_an_unknown_command_is_detected() -> None:
    for argv in (["rum"], ["run", "--cpu", "3"], ["machine", "list", "--jsn"], ["prices", "--spot=3"], ["handover"]):
        with pytest.raises(click.UsageError):
            check(argv)


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_block_declares_its_use(page: Path) -> None:
    for block in blocks(page):
        if block.language.startswith("{"):
            continue  # the site's own
        assert block.language in LANGUAGES, f"{block.where}: {block.language}"
        assert set(block.argv) <= WORDS.get(block.language, set()), f"{block.where}: {block.argv}"
        assert block.argv.get("needs", "time") in NEEDS, f"{block.where}: {block.argv}"
        if page.name != "commands.md" and not block.language:
            assert not commands(block), f"{block.where}: say `sh`, or `sh needs=…` if it cannot be run here"


@pytest.mark.parametrize("block", of("toml"), ids=lambda block: block.where)
def test_every_file_of_ours_is_valid(block: Block) -> None:
    table: dict[str, Any] = {"name": "census", **tomllib.loads(block.text)}
    if block.page.name == "configuration.md":
        assert not user_config.check(tomllib.loads(block.text)), block.where
    elif "tasks" in table:
        parse_tasks(table)
    elif "cluster" in table:
        parse_cluster(table, name="census", source=block.where)
    else:
        parse({"command": "true", **table})


@pytest.mark.parametrize("block", of("python"), ids=lambda block: block.where)
def test_every_program_compiles(block: Block) -> None:
    compile(block.text, block.where, "exec")


@pytest.mark.parametrize("block", of("json"), ids=lambda block: block.where)
def test_every_json_is_json(block: Block) -> None:
    json.loads(block.text)


def test_a_line_is_split_as_in_bash() -> None:
    text = (
        "outlast run -p a=1 -- python train.py   # a comment\n"
        'eval "$(outlast local env)"\n'
        "outlast logs -f $(outlast submit -p iterations=50)\n"
        "outlast plot last --json | jq '.metrics.loss[-1].value'\n"
        "outlast sweep --param 'lr=log(1..2)' \\\n    --trials 3 -- python train.py\n"
        "pip install outlast\n"
    )
    block = Block(page=PAGES[0], line=1, language="sh", argv={}, text=text)
    assert commands(block) == [
        ["run", "-p", "a=1", "--", "python", "train.py"],
        ["local", "env"],
        ["logs", "-f", "printed"],
        ["submit", "-p", "iterations=50"],
        ["plot", "last", "--json"],
        ["sweep", "--param", "lr=log(1..2)", "--trials", "3", "--", "python", "train.py"],
    ]
