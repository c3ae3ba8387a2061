"""Failures that another machine cannot repair: a wrong command, a missing module, an image without a GPU driver."""

from __future__ import annotations

import os
import re
import subprocess

import msgspec

from outlast.errors import OutlastError

# A program that fails later has shown that it can start: the failure may pass.
EARLY_S = 60.0
# The default of `[limits] crashes`.
_CRASHES = 3
_ERROR_MAX = 200
_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([^']+)'", re.MULTILINE)
# `python -m nope` has no traceback. A module that cannot be compiled has one only if another module imports it.
_NO_MAIN = re.compile(r"^\S*python[\d.]*: No module named '?([\w.]+)", re.MULTILINE)
_SYNTAX = re.compile(r"^((?:Syntax|Indentation|Tab)Error: .*)\Z", re.MULTILINE)
_NO_FILE = re.compile(r"can't open file '([^']+)': \[Errno 2\]")
_NOT_FOUND = re.compile(r"^(?:.*: )?(?:line \d+: )?([^\s:]+): (?:command )?not found$", re.MULTILINE)
# The last line that argparse, click and absl print for wrong arguments.
_USAGE = re.compile(r"^usage: .*?^(\S+: error: [^\n]+)|^Usage: .*?^(Error: [^\n]+)", re.MULTILINE | re.DOTALL)
# Lines that shells and the tools of Unix print before they exit with 2.
_MISUSE = re.compile(
    r"^.*(?:syntax error|unexpected EOF|(?:unrecognized|unknown|invalid|unexpected) (?:option|argument)"
    r"|No such file or directory|cannot access|can't cd to|can't open) ?.*$",
    re.MULTILINE | re.IGNORECASE,
)
# A Python traceback at the end of the output: its frames, and the line with the error.
_TRACEBACK = re.compile(
    r"^Traceback \(most recent call last\):\n(?P<frames>(?:[ \t].*\n)+)(?P<error>[A-Za-z_][\w.]*(?:: .*)?)$",
    re.MULTILINE,
)
# The beginning of each line of a worker's traceback under torchrun, and of torchrun's own errors.
_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
_LAUNCHER = "torch.distributed.elastic."
_FRAME = re.compile(r"^  File \"([^\"]+)\", line (\d+)", re.MULTILINE)
# Errors of the machine or of another service: the next machine may not have them.
_PASSING = re.compile(
    r"connection|timeout|timed out|http|url|unavailable|oserror|ioerror|permissionerror|cuda|nccl|memory|interrupt",
    re.I,
)


# A driver that hangs would keep a machine busy and billed.
_DRIVER_S = 120.0
_HINT = "choose an image with the NVIDIA driver: [machine] image, or remove it to use the cloud's default GPU image"


class PermanentFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The reason, and the next step for the user."""

    why: str
    hint: str


def permanent_failure(exit_code: int, *, ran_s: float, output: str) -> PermanentFailure | None:
    """Return why the command would fail on every machine; None if another attempt may help.

    `output` is the end of the command's output.
    """
    if ran_s > EARLY_S or exit_code == 0:
        return None
    if exit_code == 127:
        found = _NOT_FOUND.search(output)
        name = f"`{found[1]}`" if found else "the command"
        return PermanentFailure(
            why=f"{name} was not found on the machine (exit code 127)",
            hint="check the spelling; programs come from the environment, the image or `setup`",
        )
    if exit_code == 126:
        return PermanentFailure(
            why="the command cannot be executed (exit code 126)",
            hint="make the file executable: `chmod +x FILE`, or name its interpreter: `bash FILE`, `python FILE`",
        )
    if exit_code == 1 and (broken := _SYNTAX.search(output.rstrip())):
        return PermanentFailure(
            why=f"Python cannot compile the program: {broken[1]}{_place(output)}", hint="correct the program"
        )
    modules: list[str] = _MODULE.findall(output) or _NO_MAIN.findall(output)
    if exit_code == 1 and modules:
        name = modules[-1].partition(".")[0]
        return PermanentFailure(
            why=f"the Python module `{name}` is not installed",
            hint="add it to uv.lock, requirements.txt or pyproject.toml, or put it into the code folder",
        )
    if exit_code == 2 and (missing := _NO_FILE.search(output)):
        return PermanentFailure(
            why=f"the file {missing[1]} does not exist on the machine",
            hint="files that git ignores are not uploaded; `outlast run` lists files that it leaves out",
        )
    if exit_code == 2 and (usage := _USAGE.search(output)):
        return PermanentFailure(why=f"wrong arguments: {usage[1] or usage[2]}", hint="correct the command")
    last = "\n".join(output.rstrip().splitlines()[-3:])
    # Make exits with 2 for every failure of a program that it started.
    if exit_code == 2 and "make: ***" not in last and (misuse := _MISUSE.search(last)):
        return PermanentFailure(
            why=f"the command cannot work (exit code 2): {misuse[0].strip()[:_ERROR_MAX]}", hint="correct the command"
        )
    return None


def _place(output: str) -> str:
    frames = _FRAME.findall(output)
    return f" ({os.path.basename(frames[-1][0])}, line {frames[-1][1]})" if frames else ""


def last_error(output: str) -> str:
    """Return the error of the last Python traceback with its place: `ValueError: bad shape (train.py, line 12)`."""
    # torchrun ends with its own traceback, which is the same for all errors of its workers.
    own = _RANK.sub("", output)
    found = [one for one in _TRACEBACK.finditer(own) if not one["error"].startswith(_LAUNCHER)]
    if not found:
        return ""
    error = re.sub(r"0x[0-9a-f]+", "0x…", found[-1]["error"])
    return (error if len(error) <= _ERROR_MAX else error[: _ERROR_MAX - 1] + "…") + _place(found[-1]["frames"])


def error_text(output: str) -> str:
    """Return the error at the end of the output, as an addition to a reason; empty without a traceback."""
    error = last_error(output)
    return f": {error}" if error else ""


def named_failure(exit_code: int, output: str) -> PermanentFailure:
    """Return the failure with an exit code that the user declared final."""
    why = f"the command exited with {exit_code}, which `fail_on_exit` names{error_text(output)}"
    return PermanentFailure(why=why, hint="correct the program, or remove the code from `[limits] fail_on_exit`")


def repeated_failure(error: str, *, before: str, limit: int) -> PermanentFailure | None:
    """Return why the run ends if the previous attempt, which ended with `before`, had the same error.

    Both made no progress: a third machine would repeat it. A `limit` of more crashes than the default is obeyed.
    """
    if not error or not before.endswith(error) or _PASSING.search(error) or limit > _CRASHES:
        return None
    return PermanentFailure(
        why=f"the same error on two machines: {error}",
        hint="correct the program; `[limits] crashes = 4` retries more often",
    )


class GpuMissing(OutlastError):
    """The machine lacks GPUs that the run asked for; another machine of the same image would lack them as well."""


def check_gpus(wanted: int) -> None:
    """Raise GpuMissing unless the driver lists enough GPUs: a run that is billed for one must not train on the CPU."""
    if not wanted:
        return
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_DRIVER_S, check=False)
    except FileNotFoundError:
        raise GpuMissing(f"this image has no NVIDIA driver, and the run needs {_count(wanted)}", hint=_HINT) from None
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise GpuMissing(f"nvidia-smi does not answer: {problem}", hint=_HINT) from problem
    listed = sum(line.startswith("GPU ") for line in done.stdout.splitlines())
    if done.returncode or listed < wanted:
        reason = (done.stderr or done.stdout).strip().splitlines()[:1]
        text = f": {reason[0]}" if done.returncode and reason else ""
        raise GpuMissing(f"the driver lists {_count(listed)}, and the run needs {wanted}{text}", hint=_HINT)


def _count(gpus: int) -> str:
    return f"{gpus} GPU" if gpus == 1 else f"{gpus} GPUs"
