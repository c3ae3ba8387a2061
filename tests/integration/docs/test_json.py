"""What `--json` prints is what is promised to programs: nothing less, and nothing that is not written down."""

from __future__ import annotations

import shlex

import msgspec
import pytest

from outlast.cli.json_schema import IN_WORDS, SHAPES
from outlast.clouds.local.ssh import find_sshd
from tests.conventions.test_documented import ALL_COMMANDS
from tests.support.home import COUNTER, Home

# What is asked of a workspace that has lived. Clusters, drills, databases and sweeps have tests of their own.
ASKED = [
    "doctor",
    "submit -- true",
    "ps",
    "ps --all",
    "show run-1",
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


def test_every_command_with_json_has_a_shape() -> None:
    with_json = {name for name, command in ALL_COMMANDS.items() if any("--json" in p.opts for p in command.params)}
    assert with_json == set(SHAPES) | set(IN_WORDS)
    assert not set(SHAPES) & set(IN_WORDS)


def check(home: Home, line: str) -> None:
    """Ask, and decode strictly. Raises if something is missing, of another type, or not promised."""
    argv = shlex.split(line)
    at = argv.index("--") if "--" in argv else len(argv)
    answer = home.outlast(*argv[:at], "--json", *argv[at:])
    assert answer.returncode == 0, f"{line}: {answer.stderr}"
    name = next(known for known in (" ".join(argv[:2]), argv[0]) if known in SHAPES)
    try:
        msgspec.json.decode(answer.stdout, type=SHAPES[name])
    except msgspec.ValidationError as problem:
        pytest.fail(f"outlast {line} --json: {problem}\n{answer.stdout[:1500]}")


@pytest.mark.timeout(300)
def test_commands_print_what_is_promised(home: Home) -> None:
    home.write("count.py", COUNTER)
    assert home.outlast("run", "--name", "run", "--", "python3", "count.py", "3", "0.01").returncode == 0
    assert home.outlast("limits", "--cost-usd", "50").returncode == 0
    assert home.outlast("volume", "create", "demos", "--size", "1GB").returncode == 0
    assert home.outlast("volume", "populate", "demos", "count.py").returncode == 0
    assert home.outlast("local", "set", "local1-a", "--capacity", "3", "--mean-life", "10m").returncode == 0
    for line in ASKED:
        check(home, line)


@pytest.mark.timeout(300)
@pytest.mark.skipif(not find_sshd(), reason="there is no sshd here: apt install openssh-server")
def test_machines_and_images_are_told_as_promised(home: Home) -> None:
    assert home.outlast("machine", "create", "box").returncode == 0
    assert home.outlast("machine", "snapshot", "box", "--family", "env", "--stop").returncode == 0
    for line in ("machine list", "machine show box", "local machines", "image list", "image show env", "cost"):
        check(home, line)


def test_what_is_not_promised_is_found_out() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'[{"name": "a", "bytes": 1, "folder": false, "new": 1}]', type=SHAPES["volume ls"])
