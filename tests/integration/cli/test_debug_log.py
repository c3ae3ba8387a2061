"""`OUTLAST_LOG` and `--verbose`."""

from __future__ import annotations

from pathlib import Path

from outlast.cli.shared.debug_log import masked
from tests.support.home import Home


def test_values_of_variables_are_left_out() -> None:
    argv = ["run", "--env", "TOKEN=abc", "--env=KEY=xyz", "-e", "A=b=c", "--", "train", "--env-size", "3"]
    assert masked(argv) == ["run", "--env", "TOKEN=…", "--env=KEY=…", "-e", "A=…", "--", "train", "--env-size", "3"]


def test_a_log_file_has_versions_the_command_and_tracebacks_that_users_do_not_see(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (tmp_path / "home").mkdir()
    file = tmp_path / "log.txt"
    answer = home.outlast("show", "nothing", OUTLAST_LOG=str(file))
    text = file.read_text()
    assert "Traceback" not in answer.stderr
    assert "command: show nothing" in text
    assert "Traceback" in text
    assert "NoSuchRun" in text
    assert f"exit code {answer.returncode}" in text
    loud = home.outlast("ps", "--verbose")
    assert loud.returncode == 0
    assert "command: ps" in loud.stderr
    assert "command: ps" not in loud.stdout
