"""The placeholders `{resume:…}` and `{newest:…}` of commands, row by row."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.runs.folder_listing import newest_path
from outlast.spec.command import argv_of, check_placeholders, is_plain, script_of
from outlast.spec.resume_option import newest_of

OPTION = "{resume:--resume {newest:out/checkpoint-*}}"


def newest(pattern: str) -> str:
    return {"out/checkpoint-*": "out/checkpoint-100", "two words/*": "two words/a b"}.get(pattern, "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"python t.py {OPTION} -v", "python t.py --resume out/checkpoint-100 -v"),
        ("python t.py {resume:--resume {newest:none/*}} -v", "python t.py  -v"),
        ("python t.py {resume:--from={newest:two words/*}}", "python t.py --from='two words/a b'"),
        ("python t.py --init {newest:out/checkpoint-*}", "python t.py --init out/checkpoint-100"),
        ("python t.py {resume:--a {newest:out/checkpoint-*} --b {newest:none/*}}", "python t.py "),
        ("python t.py {lr}", "python t.py 0.1"),
        ("python t.py {resume:--again {exists:out/checkpoint-*}} -v", "python t.py --again -v"),
        ("python t.py {resume:--again {exists:none/*}}", "python t.py "),
    ],
)
def test_a_shell_command_gets_the_option_if_there_is_a_checkpoint(text: str, expected: str) -> None:
    assert argv_of(text, {"lr": 0.1}, newest=newest)[2] == expected


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("t", OPTION, "-v"), ["t", "--resume", "out/checkpoint-100", "-v"]),
        (("t", "{resume:--resume {newest:two words/*}}"), ["t", "--resume", "two words/a b"]),
        (("t", "{resume:--resume {newest:none/*}}", "-v"), ["t", "-v"]),
        (("t", "ckpt={newest:two words/*}"), ["t", "ckpt=two words/a b"]),
        (("t", "{resume:resume=True {exists:two words/*}}"), ["t", "resume=True"]),
    ],
)
def test_a_list_gets_the_option_as_separate_arguments(argv: tuple[str, ...], expected: list[str]) -> None:
    assert argv_of(argv, {}, newest=newest) == expected


def test_without_a_machine_nothing_is_resumed() -> None:
    assert argv_of(("t", OPTION), {}) == ["t"]


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ([("checkpoint-90", 2.0), ("checkpoint-100", 1.0)], "checkpoint-100"),
        ([("epoch=2-step=9.ckpt", 1.0), ("epoch=10-step=40.ckpt", 1.0)], "epoch=10-step=40.ckpt"),
        ([("best.pt", 2.0), ("last.pt", 3.0)], "last.pt"),
        ([("checkpoint-90", 2.0), ("last.pt", 1.0)], "checkpoint-90"),
        ([], ""),
    ],
)
def test_the_newest_path_is_found_by_numbers_or_by_time(paths: list[tuple[str, float]], expected: str) -> None:
    assert newest_of(paths) == expected


def test_patterns_are_relative_to_the_code_or_to_the_checkpoint_folder(tmp_path: Path) -> None:
    for name in ("work/out/checkpoint-9", "work/out/checkpoint-10", "saved [1]/model_2.pt"):
        (tmp_path / name).mkdir(parents=True)
    root, checkpoints = str(tmp_path / "work"), str(tmp_path / "saved [1]")
    assert newest_path("out/checkpoint-*", root=root, checkpoints=checkpoints) == "out/checkpoint-10"
    found = newest_path("$OUTLAST_CHECKPOINT_DIR/*.pt", root=root, checkpoints=checkpoints)
    assert found == str(tmp_path / "saved [1]" / "model_2.pt")


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (f"python t.py {OPTION}", ""),
        ("python t.py {resume:--resume {newest:out/*}", "is not closed"),
        ("python t.py {resume:--resume}", "contains no {newest:PATTERN}"),
        (("t", "{newest:}"), "is not closed, or has no pattern"),
    ],
)
def test_an_incomplete_placeholder_is_an_error(command: str | tuple[str, ...], problem: str) -> None:
    found = check_placeholders(command, [])
    assert [problem in text for text in found] == ([True] if problem else [])


def test_a_command_with_the_option_is_plain() -> None:
    assert is_plain(f"python t.py {OPTION}")
    assert script_of(f"python t.py {OPTION}") == "t.py"
