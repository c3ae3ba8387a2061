"""The door: answers `--help` and `--version` from a table, without loading what the other commands need."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time

# Command → (module, attribute, group, what it does). The one list of commands; docs and completion come from it.
COMMANDS: dict[str, tuple[str, str, str, str]] = {
    "demo": ("demo", "demo", "start", "train something for half a minute, be preempted twice, survive"),
    "init": ("init", "init", "start", "write a commented `outlast.toml`"),
    "doctor": ("doctor", "doctor", "start", "check the set-up; say what is missing and how to get it"),
    "ui": ("ui", "ui", "start", "everything in a browser, live: runs, machines, costs"),
    "run": ("run", "run", "runs", "submit, follow the output, fetch the results"),
    "submit": ("run", "submit", "runs", "submit and leave; a background supervisor takes over"),
    "ps": ("ps", "ps", "runs", "what runs, where, since when, for how much, and what it waits for"),
    "show": ("show", "show", "runs", "the story of a run, with a timeline"),
    "logs": ("logs", "logs", "runs", "the output of a run"),
    "plot": ("plot", "plot", "runs", "draw the metrics of a run, over all attempts"),
    "pull": ("pull", "pull", "runs", "copy the results of a run here"),
    "cancel": ("cancel", "cancel", "runs", "end a run; its machine is deleted"),
    "handover": ("handover", "handover", "runs", "give a run to another user, with its costs and limits"),
    "preempt": ("preempt", "preempt", "runs", "take a run's machine away on purpose"),
    "drill": ("drill", "drill", "runs", "preempt your own training on purpose, and say what survives"),
    "simulate": (
        "simulate",
        "simulate",
        "runs",
        "play a job before paying for it: cost, end, chance of being late",
    ),
    "rerun": ("rerun", "rerun", "runs", "a run once more, from its recorded spec, code and image"),
    "compare": ("compare", "compare", "runs", "runs side by side: parameters, metrics, cost, code, curves"),
    "burst": ("burst", "burst", "runs", "one big machine for minutes: results back, machine gone"),
    "sweep": ("sweep", "sweep", "runs", "search hyperparameters: many trials, on machines that may vanish"),
    "machine": ("machine", "machine", "machines", "machines for work by hand: make, log in, keep alive, throw away"),
    "image": ("image", "image", "machines", "build the images that machines boot from; families, sharing, pruning"),
    "volume": ("volume", "volume", "machines", "file systems that many machines mount at once"),
    "db": ("db", "db", "machines", "databases that a team shares: make, let people in, check, back up"),
    "cluster": ("cluster", "cluster", "machines", "clusters of Ray: up, submit, status, down"),
    "sync": ("sync", "sync", "machines", "keep a folder here and one on a machine the same"),
    "attach": ("attach", "attach", "machines", "the terminal of a run or a machine; leave it and come back"),
    "tunnel": ("tunnel", "tunnel", "machines", "a port of a run or a machine, here: TensorBoard, Jupyter"),
    "cost": ("cost", "cost", "money", "what was spent, on what, and what of it was for nothing"),
    "prices": ("prices", "prices", "money", "what machines cost, on all clouds side by side"),
    "limits": ("limits", "limits", "money", "what users and the workspace may spend"),
    "supervise": ("supervise", "supervise", "care", "keep the runs of a workspace alive"),
    "plan": ("supervise", "plan_command", "care", "what the supervisor would do now"),
    "reap": ("supervise", "reap", "care", "delete every machine that no live run owns"),
    "setup": ("setup", "setup", "care", "prepare a cloud: print what is needed, make it with --apply"),
    "local": ("local", "local", "care", "the cloud inside this computer: zones, capacity, machines"),
    "completion": ("completion", "completion", "care", "print the shell completion for bash, zsh or fish"),
}

# Two signals within so long are one.
_MOMENT_S = 0.3

# Words of `ps` that need no parser.
_PLAIN = {"--all", "-a", "--json"}

_GROUPS = {"start": "Start here", "runs": "Runs", "machines": "Machines", "money": "Money", "care": "Care"}

_OPTIONS = """\
Every command takes --workspace (default: OUTLAST_WORKSPACE, `workspace` in outlast.toml, ~/.outlast/workspace)
and --help. RUN is a name, an unambiguous beginning of one, or `last`.
"""


def root_help() -> str:
    """The page that `outlast --help` prints."""
    from outlast.errors import EXIT_CODES

    lines = ["usage: outlast COMMAND [OPTIONS]", "", "Experiments that outlast their machines.", ""]
    for group, title in _GROUPS.items():
        lines.append(f"{title}:")
        lines += [f"  {name:<11} {what}" for name, (_, _, where, what) in COMMANDS.items() if where == group]
        lines.append("")
    lines += [_OPTIONS, "Exit codes:"]
    lines += [f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items()]
    lines.append("  `outlast run` exits with the code of the command that it ran.")
    return "\n".join(lines)


def main() -> None:
    """The console script. However often Ctrl-C is pressed, and whenever, no traceback is seen."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _nothing_done)
    try:
        _answer()
    except KeyboardInterrupt:  # pressed again, in the moment in which the first was dealt with
        _leave(130)


def _nothing_done(*_: object) -> None:
    """Ctrl-C while we are being loaded: an exception could come out in the middle of anybody's module."""
    if "_OUTLAST_COMPLETE" not in os.environ:
        os.write(2, b"\nstopped; nothing was done\n")
    os._exit(130)


def begin() -> None:
    """From here on Ctrl-C is for the command to deal with."""
    if signal.getsignal(signal.SIGINT) is _nothing_done:
        signal.signal(signal.SIGINT, _Once())


def end() -> None:
    """The command is over. Who presses Ctrl-C again wants to be gone, and not to see where we were."""
    # Not SIG_IGN: Python complains of a signal that is on its way when it is set.
    signal.signal(signal.SIGINT, lambda *_: None)


class _Once:
    """Ctrl-C, as Python takes it; but what comes twice in a moment is one. Impatient people do that, and programs that
    signal both a process and its group, and the second would come out of whatever the first has set going."""

    def __init__(self) -> None:
        self._at = -_MOMENT_S

    def __call__(self, *_: object) -> None:
        now = time.monotonic()
        if now - self._at >= _MOMENT_S:
            self._at = now
            raise KeyboardInterrupt


def _answer() -> None:
    from outlast.cli.sanitize import guard

    _open_streams()
    guard()
    argv = sys.argv[1:]
    # A shell that asks for completions calls without words: the question is in the environment.
    asked = "_OUTLAST_COMPLETE" in os.environ
    if argv in (["--help"], ["-h"], ["help"]) or (not argv and not asked):
        print(root_help())
        return
    if argv == ["--version"]:
        from outlast import __version__

        print(f"outlast {__version__}")
        return
    # Loading makes many objects and no garbage: looking for some at the usual pace is a tenth of a short command.
    gc.set_threshold(50_000)
    if argv[:1] == ["ps"] and set(argv[1:]) <= _PLAIN:
        _leave(_list_runs(argv))
    from outlast.cli.app import call

    _leave(call(argv))


def _list_runs(argv: list[str]) -> int:
    """The command that is typed most, without the parser of the others: loading it takes as long as the listing."""
    from outlast.cli.runs import list_runs
    from outlast.cli.terminal import complain
    from outlast.errors import OutlastError

    begin()
    try:
        return list_runs(everything=bool({"--all", "-a"} & set(argv)), as_json="--json" in argv)
    except OutlastError as problem:
        complain(problem.message, hint=problem.hint)
        return problem.exit_code
    except KeyboardInterrupt:
        end()
        print("\nstopped looking; the runs go on", file=sys.stderr)
        return 130


def _open_streams() -> None:
    """Give us the streams that we were started without (`>&-`): a file opened later must not get their numbers, and
    what is printed goes nowhere instead of nowhere to be found."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - as long as we live


def _leave(code: int) -> None:
    """Out, without taking the interpreter apart piece by piece, which is another tenth. Nothing here waits for it:
    whatever must be whole is in the workspace, and threads that are left are there to be cut off."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = 141
    except OSError as problem:
        code = code or 1
        try:
            os.write(2, f"error: the output could not be written: {problem.strerror}\n".encode())
        except OSError:
            pass  # the terminal is gone, and there is nobody to tell
    os._exit(code)
