"""The rows of the guides (`rows.toml`), each typed by a new user in an empty home."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.conventions.sources import ROOT
from tests.support.home import OUTLAST, Home
from tests.support.ordinary import ordinary_user

with open(Path(__file__).parent / "rows.toml", "rb") as file:
    TABLE: dict[str, Any] = tomllib.load(file)
ROWS: list[dict[str, Any]] = TABLE["row"]


SEEDS = {"base machine", "Ray cluster", "survival", "burst", "shared database"}


def test_every_guide_has_rows_and_each_row_says_what_to_expect() -> None:
    every = [*ROWS, *TABLE["longer"], *TABLE["instead"]]
    for kind in (ROWS, TABLE["longer"], TABLE["instead"]):
        assert {row["seed"] for row in kind} == SEEDS
    assert len({row["row"] for row in every}) == len(every)
    assert all(row["shows"] for row in ROWS)
    assert all(row["why"] for row in TABLE["instead"])


@pytest.mark.parametrize("row", TABLE["longer"], ids=lambda row: f"{row['seed']}: {row['row']}")
def test_a_longer_row_has_its_test(row: dict[str, Any]) -> None:
    file, _, name = row["test"].partition("::")
    assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")


@pytest.mark.full
@pytest.mark.parametrize("mode", ["", "plain"], ids=["strongest", "plain"])
@pytest.mark.parametrize("row", ROWS, ids=[f"{row['seed']}: {row['row']}" for row in ROWS])
def test_row(home: Home, row: dict[str, Any], mode: str) -> None:
    for name, text in TABLE["files"].items():
        home.write(name, text)
    folder = home.root / "home"
    folder.mkdir(exist_ok=True)
    environment = {**home.environment, "PATH": f"{os.path.dirname(OUTLAST)}:{os.environ['PATH']}"}
    if mode:
        # The machines of a user without any rights: processes in folders.
        environment["OUTLAST_LOCAL_MODE"] = mode
    answer = subprocess.run(
        ["bash", "-c", row["run"]],
        cwd=home.project,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )
    check(row, answer)


@pytest.mark.full
@pytest.mark.parametrize("row", ROWS, ids=[f"{row['seed']}: {row['row']}" for row in ROWS])
def test_row_for_an_ordinary_user_with_the_core_only(row: dict[str, Any]) -> None:
    with ordinary_user() as user:
        for name, text in TABLE["files"].items():
            user.write(name, text)
        check(row, user.bash(row["run"], merged=True))


def check(row: dict[str, Any], answer: subprocess.CompletedProcess[str]) -> None:
    assert answer.returncode == row.get("exit", 0), answer.stdout
    rest = answer.stdout
    for text in row["shows"]:
        assert text in rest, answer.stdout
        rest = rest[rest.index(text) + len(text) :]
