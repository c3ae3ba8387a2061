"""Which failures end a run at once: rows of exit code, duration and output."""

from __future__ import annotations

import pytest

from outlast.agent.permanent import permanent_failure

TRACE = "Traceback (most recent call last):\n  File 'a.py', line 1, in <module>\n"
MODULE = TRACE + "ModuleNotFoundError: No module named 'torch.nn'\n"


@pytest.mark.parametrize(
    ("exit_code", "output", "why"),
    [
        (127, "bash: line 1: pyhton: command not found\n", "`pyhton` was not found"),
        (127, "/bin/sh: 1: pyhton: not found\n", "`pyhton` was not found"),
        (127, "", "the command was not found"),
        (126, "bash: ./train.py: Permission denied\n", "cannot be executed"),
        (1, MODULE, "the Python module `torch` is not installed"),
        (
            2,
            "python: can't open file '/w/tarin.py': [Errno 2] No such file or directory\n",
            "/w/tarin.py does not exist",
        ),
        (
            2,
            "usage: t.py [-h] [--lr LR]\nt.py: error: unrecognized arguments: --lrr 3\n",
            "unrecognized arguments: --lrr",
        ),
        (
            2,
            "Usage: t.py [OPTIONS]\nTry 't.py --help' for help.\n\nError: No such option: --lrr\n",
            "No such option: --lrr",
        ),
    ],
)
def test_a_failure_that_every_machine_repeats_is_permanent(exit_code: int, output: str, why: str) -> None:
    found = permanent_failure(exit_code, ran_s=2.0, output=output)
    assert found is not None
    assert why in found.why
    assert found.hint


@pytest.mark.parametrize(
    ("exit_code", "ran_s", "output"),
    [
        (0, 1.0, MODULE),
        (1, 1.0, TRACE + "ConnectionError: no route to host\n"),
        (1, 300.0, MODULE),  # imported late: the program had worked until then
        (2, 1.0, "the device is busy\n"),
        (137, 1.0, MODULE),
        (127, 61.0, ""),
    ],
)
def test_a_failure_that_may_pass_is_retried(exit_code: int, ran_s: float, output: str) -> None:
    assert permanent_failure(exit_code, ran_s=ran_s, output=output) is None
