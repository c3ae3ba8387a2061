"""Which failures end a run at once: rows of exit code, duration and output."""

from __future__ import annotations

import pytest

from outlast.agent.permanent import last_error, named_failure, permanent_failure, repeated_failure

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
        (
            1,
            "  File \"/w/train.py\", line 3\n    x = (1\n        ^\nSyntaxError: '(' was never closed\n",
            "SyntaxError: '(' was never closed (train.py, line 3)",
        ),
        (
            1,
            TRACE + '  File "/w/b.py", line 2\n    x=1\nIndentationError: unexpected indent\n',
            "IndentationError: unexpected indent (b.py, line 2)",
        ),
        (1, "/w/env/bin/python3: No module named nope\n", "the Python module `nope` is not installed"),
        (2, "train.sh: line 2: syntax error: unexpected end of file\n", "syntax error: unexpected end of file"),
        (2, "sort: unrecognized option '--nope'\nTry 'sort --help' for more information.\n", "unrecognized option"),
        (2, "error: unexpected argument '--nope' found\n\nUsage: train [OPTIONS]\n", "unexpected argument '--nope'"),
        (2, "ls: cannot access 'data': No such file or directory\n", "cannot access 'data'"),
        (2, "sh: 1: cd: can't cd to data\n", "can't cd to data"),
    ],
)
def test_a_failure_that_every_machine_repeats_is_permanent(exit_code: int, output: str, why: str) -> None:
    found = permanent_failure(exit_code, ran_s=2.0, output=output)
    assert found is not None
    assert why in found.why
    assert found.why == found.why.strip(), "it is one line of a message"
    assert found.hint


@pytest.mark.parametrize(
    ("exit_code", "ran_s", "output"),
    [
        (0, 1.0, MODULE),
        (1, 1.0, TRACE + "ConnectionError: no route to host\n"),
        (1, 300.0, MODULE),  # imported late: the program had worked until then
        (2, 1.0, "the device is busy\n"),
        (2, 1.0, "cat: old: No such file or directory\n" + 3 * "step\n"),  # not what ended the program
        (2, 1.0, "cat: x: No such file or directory\nmake: *** [Makefile:3: train] Error 1\n"),
        (1, 1.0, "SyntaxError: caught and printed\nthe server is busy\n"),
        (137, 1.0, MODULE),
        (127, 61.0, ""),
    ],
)
def test_a_failure_that_may_pass_is_retried(exit_code: int, ran_s: float, output: str) -> None:
    assert permanent_failure(exit_code, ran_s=ran_s, output=output) is None


VALUE = """\
Traceback (most recent call last):
  File "/w/code/train.py", line 40, in <module>
    main()
  File "/w/code/model.py", line 12, in forward
    raise ValueError(x)
ValueError: bad shape of <Tensor at 0x7f01aa>
"""


@pytest.mark.parametrize(
    ("output", "error"),
    [
        ("step 1\n" + VALUE, "ValueError: bad shape of <Tensor at 0x…> (model.py, line 12)"),
        (TRACE.replace("'a.py'", '"a.py"') + "KeyError\n", "KeyError (a.py, line 1)"),
        ("ValueError: printed, not raised\n", ""),
        ("", ""),
        # torchrun adds its own traceback, which says nothing about the worker's error.
        (
            "".join(f"[rank0]: {line}\n" for line in VALUE.splitlines())
            + TRACE.replace("'a.py'", '"/x/api.py"')
            + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\n",
            "ValueError: bad shape of <Tensor at 0x…> (model.py, line 12)",
        ),
        (
            VALUE + TRACE.replace("'a.py'", '"a.py"') + "torch.OutOfMemoryError: CUDA\n",
            "torch.OutOfMemoryError: CUDA (a.py, line 1)",
        ),
    ],
)
def test_the_error_of_the_last_traceback_is_found(output: str, error: str) -> None:
    assert last_error(output) == error


@pytest.mark.parametrize(
    ("error", "before", "ends"),
    [
        ("KeyError: 'x' (a.py, line 3)", "exit code 1: KeyError: 'x' (a.py, line 3)", True),
        ("KeyError: 'x' (a.py, line 3)", "exit code 1: KeyError: 'x' (a.py, line 4)", False),
        ("KeyError: 'x' (a.py, line 3)", "", False),
        ("", "exit code 1", False),
        # Errors of the machine or of a service may pass.
        ("ConnectionError: x (a.py, line 3)", "exit code 1: ConnectionError: x (a.py, line 3)", False),
        ("RuntimeError: CUDA error (a.py, line 3)", "exit code 1: RuntimeError: CUDA error (a.py, line 3)", False),
    ],
)
def test_the_same_error_on_a_second_machine_ends_the_run(error: str, before: str, ends: bool) -> None:
    assert (repeated_failure(error, before=before, limit=3) is not None) is ends
    assert repeated_failure(error, before=before, limit=4) is None


def test_a_code_that_the_user_named_ends_the_run_with_the_error() -> None:
    found = named_failure(64, TRACE + "ValueError: bad shape\n")
    assert found.why.startswith("the command exited with 64, which `fail_on_exit` names: ValueError: bad shape")
