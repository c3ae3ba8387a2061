"""Invalid input of users: unusual characters, NaN, secrets in the wrong place. It is refused before a launch."""

from __future__ import annotations

import pytest

from tests.support.home import Home

REFUSED = {
    "a number that is none": ('command = "echo {x}"\n[params]\nx = nan\n', [], "nan"),
    "a number without end": ('command = "echo {x}"\n[params]\nx = -inf\n', [], "inf"),
    "the character 0 in a variable": ('command = "true"\n[env]\nX = "a\\u0000b"\n', [], "[env] X"),
    "the character 0 in the command": ('command = ["echo", "\\u0000"]\n', [], "command"),
    "no text in the command": ("", ["--", "echo", b"\xff"], "command"),
    "no text in a parameter": ('command = "echo {x}"\n', ["--param", b"x=\xff"], "--param: contains bytes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_values_that_no_machine_can_receive_are_refused_before_a_launch(home: Home, name: str) -> None:
    file, argv, result = REFUSED[name]
    home.write("outlast.toml", file)
    answer = home.outlast("run", *argv)  # type: ignore[arg-type]
    assert answer.returncode == 2, answer.stderr
    assert result in answer.stderr
    assert "Traceback" not in answer.stderr
    assert list(home.workspace.runs()) == []


def test_a_secret_written_where_its_name_belongs_is_not_repeated(home: Home) -> None:
    home.write("outlast.toml", 'command = "true"\n')
    by_option = home.outlast("run", "--secret", "TOKEN=hunter2")
    home.write("outlast.toml", 'command = "true"\nsecrets = ["TOKEN=hunter2"]\n')
    by_file = home.outlast("run")
    for answer in (by_option, by_file):
        assert answer.returncode == 2
        assert "hunter2" not in answer.stdout + answer.stderr
        assert "names of environment variables" in answer.stderr


def test_unusual_characters_reach_the_command_unchanged(home: Home) -> None:
    odd = "a 'b' \"c\" $HOME `d` ; \\ * é 漢 \n e"
    home.write("show.py", "import os, sys\nprint([sys.argv[1], os.environ['X'], os.environ['OUTLAST_PARAM_P']])\n")
    home.write("outlast.toml", 'command = "python3 show.py {p}"\n')
    answer = home.outlast("run", "--quiet", "-p", f"p={odd}", "-e", f"X={odd}")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == f"{[odd, odd, odd]}\n"
