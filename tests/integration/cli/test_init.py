"""`outlast init` writes a valid file with good guesses, and overwrites nothing."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from outlast.spec.parse import parse
from tests.integration.cli.console import Console


def written(console: Console) -> dict[str, Any]:
    return tomllib.loads((console.folder / "outlast.toml").read_text())


def test_writes_a_valid_file_and_prints_the_next_step(console: Console) -> None:
    (console.folder / "train.py").touch()
    answer = console.run("init")
    assert answer.returncode == 0
    assert answer.stdout == "wrote outlast.toml\n"
    assert "outlast run" in answer.stderr
    assert parse(written(console)).name == "project"


def test_every_example_in_the_file_is_valid_once_it_is_uncommented(console: Console) -> None:
    console.well("init")
    text = (console.folder / "outlast.toml").read_text()
    table = tomllib.loads(re.sub(r"^#(?! )", "", text, flags=re.MULTILINE))
    spec = parse(table)
    assert spec.limits.crashes == 3
    sections = {"params", "machine", "environment", "code", "data", "env", "secrets", "checkpoint", "outputs", "limits"}
    assert sections | {"name", "command", "setup", "workspace"} == set(table)


def test_prefers_train_over_main_over_the_only_script(console: Console) -> None:
    for name, others in (("fit model.py", []), ("main.py", ["fit model.py"]), ("train.py", ["main.py"])):
        for file in [name, *others]:
            (console.folder / file).touch()
        console.well("init", "--force")
        assert name in written(console)["command"]
        assert parse(written(console)).command.__class__ is str


def test_reports_a_missing_script(console: Console) -> None:
    (console.folder / "one.py").touch()
    (console.folder / "two.py").touch()
    answer = console.run("init")
    assert "set `command`" in answer.stderr
    assert parse(written(console)).command


def test_guesses_the_checkpoint_folder_from_existing_folders(console: Console) -> None:
    (console.folder / "ckpt").mkdir()
    console.well("init")
    assert parse(written(console)).checkpoint.path == "ckpt"


def test_overwrites_only_with_force(console: Console) -> None:
    file = console.folder / "outlast.toml"
    file.write_text("mine")
    answer = console.run("init")
    assert answer.returncode == 2
    assert "--force" in answer.stderr
    assert file.read_text() == "mine"
    assert console.run("init", "--force").returncode == 0
    assert file.read_text() != "mine"


def test_does_not_override_a_table_of_pyproject(console: Console) -> None:
    (console.folder / "pyproject.toml").write_text("[tool.outlast]\ncommand = 'true'\n")
    answer = console.run("init")
    assert answer.returncode == 2
    assert "[tool.outlast]" in answer.stderr
    assert not (console.folder / "outlast.toml").exists()


def test_writes_to_another_folder_and_names_a_run_by_it(console: Console) -> None:
    (console.folder / "My Études 2").mkdir()
    answer = console.run("init", "My Études 2")
    assert "cd 'My Études 2' && outlast run" in answer.stderr
    table = tomllib.loads((console.folder / "My Études 2" / "outlast.toml").read_text())
    assert re.fullmatch(r"[a-z][a-z0-9-]*", parse(table).name)


def test_a_missing_folder_is_a_usage_error(console: Console) -> None:
    answer = console.run("init", "nowhere")
    assert answer.returncode == 2
    assert "nowhere" in answer.stderr
