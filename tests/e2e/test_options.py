"""Options that replace lines of a project file: data, code of a git ref, and errors that name the option."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.home import Home


def git(home: Home, *argv: str) -> None:
    identity = ["-c", "user.name=ada", "-c", "user.email=ada@example.org"]
    subprocess.run(["git", *identity, *argv], cwd=home.project, check=True, capture_output=True)


def test_data_on_the_command_line_is_relative_to_the_current_folder(home: Home) -> None:
    home.write("census/a.txt", "counted\n")
    answer = home.outlast("run", "--data", "data=census", "--", "cat", "data/a.txt")
    assert (answer.returncode, answer.stdout) == (0, "counted\n"), answer.stderr


def test_a_command_line_in_one_argument_is_run_by_bash_unless_it_names_a_program(home: Home) -> None:
    answer = home.outlast("run", "--", 'cd / && pwd | tr / x; echo "attempt $OUTLAST_ATTEMPT"')
    assert (answer.returncode, answer.stdout) == (0, "x\nattempt 1\n"), answer.stderr
    home.write("my program", "#!/bin/sh\necho mine\n").chmod(0o755)
    assert home.outlast("run", "--", "./my program").stdout == "mine\n"


@pytest.mark.full
def test_git_runs_the_code_of_a_ref_of_the_remote(home: Home) -> None:
    home.write("version.txt", "tagged\n")
    git(home, "init", "-q")
    git(home, "add", ".")
    git(home, "commit", "-qm", "one")
    git(home, "tag", "v1")
    git(home, "clone", "-q", "--bare", ".", str(home.root / "workspace" / "origin.git"))
    home.write("version.txt", "later\n")
    command = ("--", "cat", "version.txt")
    refused = home.outlast("run", "--git", "v1", *command)
    assert refused.returncode == 2
    assert "has no git remote `origin`" in refused.stderr
    git(home, "remote", "add", "origin", f"file://{home.root}/workspace/origin.git")
    assert home.outlast("run", "--git", "v1", *command).stdout == "tagged\n"
    assert home.outlast("run", *command).stdout == "later\n"


def test_a_project_file_of_a_parent_folder_is_named(home: Home) -> None:
    home.write("outlast.toml", 'command = "echo from the parent"\n')
    (home.project / "deep").mkdir()
    home.project = home.project / "deep"
    answer = home.outlast("run")
    assert answer.stdout == "from the parent\n"
    assert "using ../outlast.toml" in answer.stderr
    assert "using" not in home.outlast("run", "--quiet").stderr
    home.project = home.project.parent
    assert "using" not in home.outlast("run").stderr


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["--cpus", "0"], "command line: 1 problem\n  - --cpus: "),
        (["--set", "machine.cpus=0"], "command line: 1 problem\n  - --cpus: "),
        (["--data", "data=missing"], "command line: 1 problem\n  - --data: "),
        (["--cpus", "4000"], "command line: 1 problem\n  - [machine]: no machine type"),
        (["--disk", "1GB"], "outlast.toml: 1 problem\n  - [limits] crashes: "),
        (["--disk", "much"], "outlast.toml: 2 problems\n"),
    ],
)
def test_an_error_names_the_option_that_caused_it(home: Home, argv: list[str], error: str) -> None:
    wrong = "[limits]\ncrashes = -1\n" if "--disk" in argv else ""
    home.write("outlast.toml", f'command = "true"\n{wrong}')
    answer = home.outlast("run", *argv)
    assert answer.returncode == 2
    assert answer.stderr.startswith(f"error: {error}"), answer.stderr


def test_data_put_copies_missing_files_only_and_once(home: Home) -> None:
    home.write("census/a.txt", "one\n")
    home.write("census/deep/b.txt", "two\n")
    where = home.root / "bucket"
    first = home.outlast("data", "put", "census", str(where))
    assert first.stdout == f"copied 2 files (8 B) to {where}\n", first.stderr
    home.write("census/a.txt", "changed\n")
    second = home.outlast("data", "put", "census", str(where))
    assert second.stdout == f"copied 1 file (8 B) to {where}; 1 were there already\n"
    assert (where / "a.txt").read_text() == "changed\n"
    assert (where / "deep" / "b.txt").read_text() == "two\n"
    assert home.outlast("data", "put", "census/a.txt", str(home.root / "one")).returncode == 0
    assert (home.root / "one" / "a.txt").read_text() == "changed\n"
    assert home.outlast("data", "put", "missing", str(where)).returncode == 2
