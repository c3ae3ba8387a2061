"""The output of `--json` has exactly the declared fields."""

from __future__ import annotations

import shlex

import msgspec
import pytest

from outlast.cli.json_schema import json_type
from outlast.cli.shared.command import OutlastCommand
from outlast.clouds.local.ssh import find_sshd
from tests.conventions.test_documented import ALL_COMMANDS
from tests.support.home import COUNTER, Home

# Commands for a workspace with some history. Clusters, drills, databases and sweeps have separate tests.
LINES = [
    "doctor",
    "submit -- true",
    "ps",
    "ps --all",
    "show run-1",
    "note run-1 --tag good",
    "cost",
    "cost run-1",
    "cost --by user",
    "prices --cloud local",
    "limits",
    "machine list",
    "image list",
    "image prune --dry-run",
    "cluster list",
    "volume list",
    "volume show demos",
    "volume ls demos",
    "db list",
    "local zones",
    "local machines",
    "sweep list",
]


SCHEMAS = {
    name: json_type(command.json)
    for name, command in ALL_COMMANDS.items()
    if isinstance(command, OutlastCommand) and command.json
}


def test_every_command_with_json_declares_its_output() -> None:
    for name, command in ALL_COMMANDS.items():
        if isinstance(command, OutlastCommand):
            has = any("--json" in param.opts for param in command.params)
            assert has == bool(command.json or command.json_text), name
            assert not (command.json and command.json_text), name


def check(home: Home, line: str) -> None:
    """Run the command and decode its output strictly: fails on missing, unknown or mistyped fields."""
    argv = shlex.split(line)
    at = argv.index("--") if "--" in argv else len(argv)
    answer = home.outlast(*argv[:at], "--json", *argv[at:])
    assert answer.returncode == 0, f"{line}: {answer.stderr}"
    name = next(known for known in (" ".join(argv[:2]), argv[0]) if known in SCHEMAS)
    try:
        msgspec.json.decode(answer.stdout, type=SCHEMAS[name])
    except msgspec.ValidationError as problem:
        pytest.fail(f"outlast {line} --json: {problem}\n{answer.stdout[:1500]}")


@pytest.mark.full
def test_commands_print_their_declared_fields(home: Home) -> None:
    home.write("count.py", COUNTER)
    assert home.outlast("run", "--name", "run", "--", "python3", "count.py", "3", "0.01").returncode == 0
    assert home.outlast("limits", "--cost-usd", "50").returncode == 0
    assert home.outlast("volume", "create", "demos", "--size", "1GB").returncode == 0
    assert home.outlast("volume", "populate", "demos", "count.py").returncode == 0
    assert home.outlast("local", "set", "local1-a", "--capacity", "3", "--mean-life", "10m").returncode == 0
    for line in LINES:
        check(home, line)


@pytest.mark.full
@pytest.mark.skipif(not find_sshd(), reason="sshd is not installed: apt install openssh-server")
def test_machine_and_image_commands_print_their_declared_fields(home: Home) -> None:
    assert home.outlast("machine", "create", "box").returncode == 0
    assert home.outlast("machine", "snapshot", "box", "--family", "env", "--stop").returncode == 0
    for line in ("machine list", "machine show box", "local machines", "image list", "image show env", "cost"):
        check(home, line)


def test_an_undeclared_field_is_rejected() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'[{"name": "a", "bytes": 1, "folder": false, "new": 1}]', type=SCHEMAS["volume ls"])
