"""Entry point: answers `--help`, `--version` and plain `ps` without importing click or the other commands."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time

# Command → (module, attribute, section, summary). A test compares it with the declarations of the commands.
COMMANDS: dict[str, tuple[str, str, str, str]] = {
    "demo": ("demo", "demo", "start", "train a small network, preempt it twice, and watch it recover"),
    "init": ("init", "init", "start", "write a commented `outlast.toml`"),
    "doctor": ("doctor", "doctor", "start", "check the set-up; report problems and fixes"),
    "verify": ("verify", "verify", "start", "prove outlast on your own cloud account, for cents"),
    "ui": ("ui", "ui", "start", "open the dashboard in a browser: runs, machines, costs"),
    "run": ("run.submit", "run", "runs", "run a command on a preemptible machine and follow it to its end"),
    "submit": ("run.submit", "submit", "runs", "submit a run and detach; a background supervisor takes over"),
    "ps": ("run.ps", "ps", "runs", "list runs: machine, age, cost, and the reason for waiting"),
    "show": ("run.show", "show", "runs", "show the story of a run, with a timeline"),
    "logs": ("run.logs", "logs", "runs", "print the output of a run, attempt by attempt"),
    "plot": ("run.plot", "plot", "runs", "draw the metrics of a run over all attempts"),
    "metrics": (
        "run.metrics",
        "metrics",
        "runs",
        "export the metrics of a run as one curve, without lost work",
    ),
    "pull": ("run.pull", "pull", "runs", "copy the outputs of a run to this computer"),
    "wait": ("run.ending", "wait", "runs", "wait until runs are over, and exit with their exit code"),
    "cancel": ("run.ending", "cancel", "runs", "end runs and delete their machines"),
    "delete": ("run.delete", "delete", "runs", "delete ended runs with their checkpoints, logs and outputs"),
    "prune": ("run.delete", "prune", "runs", "delete old runs, and code and packages that no run uses"),
    "archive": ("run.archive", "archive", "runs", "write an ended run to one file"),
    "restore": ("run.archive", "restore", "runs", "store an archived run in a workspace"),
    "notify": ("run.notify", "notify", "runs", "list the targets of `[notify]`, or send a test message to each"),
    "note": ("run.annotate", "note", "runs", "print or change the note and the tags of a run"),
    "handover": ("run.control", "handover", "runs", "give a run to another user, with its costs and limits"),
    "preempt": ("run.control", "preempt", "runs", "preempt the machine of a run, as a cloud would"),
    "drill": ("run.drill", "drill", "runs", "preempt your own training on purpose and report what survives"),
    "simulate": ("run.simulate", "simulate", "runs", "estimate cost, end and the risk of being late before you pay"),
    "rerun": ("run.rerun", "rerun", "runs", "repeat a run from its recorded spec, code and image"),
    "compare": ("run.compare", "compare", "runs", "compare runs: parameters, metrics, cost, code, curves"),
    "burst": ("run.burst", "burst", "runs", "run a command on one large machine, then fetch the results and delete it"),
    "sweep": ("sweep.group", "sweep", "runs", "search hyperparameters: many trials on preemptible machines"),
    "data": ("data", "data", "runs", "copy data to a bucket, for `[data]` and `--data`"),
    "machine": ("machine.group", "machine", "machines", "create machines, log in, keep them alive, delete them"),
    "image": ("image.group", "image", "machines", "build the images that machines boot from"),
    "volume": ("volume.group", "volume", "machines", "create file systems that many machines mount at once"),
    "db": ("db.group", "db", "machines", "create databases for a team, control access, back up"),
    "cluster": ("cluster.group", "cluster", "machines", "run Ray clusters: up, submit, status, down"),
    "sync": ("sync", "sync", "machines", "copy a folder to a machine and keep it in sync"),
    "attach": ("connect", "attach", "machines", "open the terminal of a run or a machine"),
    "tunnel": ("connect", "tunnel", "machines", "forward a port of a run or a machine to this computer"),
    "cost": ("cost.cost", "cost", "costs", "report spending: on what, and how much of it was wasted"),
    "du": ("cost.du", "du", "costs", "show what takes how much of the workspace, and its cost per month"),
    "prices": ("cost.prices", "prices", "costs", "list machine prices of all clouds, cheapest first"),
    "limits": ("cost.limits", "limits", "costs", "show or set spending limits of users and the workspace"),
    "supervise": ("supervisor.supervise", "supervise", "admin", "keep the runs of a workspace alive"),
    "plan": ("supervisor.plan", "plan_command", "admin", "print the steps that the supervisor would take now"),
    "reap": ("supervisor.reap", "reap", "admin", "delete every machine that no live run owns"),
    "setup": ("setup", "setup", "admin", "prepare a cloud account for outlast"),
    "config": ("config", "config", "admin", "show the settings that apply here, and where each comes from"),
    "local": ("local.group", "local", "admin", "inspect and control the local cloud: zones, capacity, machines"),
    "completion": ("completion", "completion", "admin", "print the completion script for bash, zsh or fish"),
}

_SECTIONS = {
    "start": "Getting started",
    "runs": "Runs",
    "machines": "Machines",
    "costs": "Costs",
    "admin": "Administration",
}

# Signals that arrive within this time of each other count as one.
_SIGNAL_GAP_S = 0.3

# Options of `ps` that need no parser.
_PLAIN = {"--all", "-a", "--json"}

_OPTIONS = """\
Every command takes --workspace (default: OUTLAST_WORKSPACE, outlast.toml, config.toml, ~/.outlast/workspace)
and --help. RUN is a name, an unambiguous prefix of one, or `last`.
"""


def root_help() -> str:
    """Return the text of `outlast --help`."""
    from outlast.errors import EXIT_CODES

    lines = ["usage: outlast COMMAND [OPTIONS]", "", "Experiments that outlast their machines.", ""]
    for section, title in _SECTIONS.items():
        lines.append(f"{title}:")
        lines += [f"  {name:<11} {summary}" for name, (_, _, where, summary) in COMMANDS.items() if where == section]
        lines.append("")
    lines += [_OPTIONS, "Exit codes:"]
    lines += [f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items()]
    lines.append("  `outlast run`, `wait` and `logs -f` exit with the exit code of the command.")
    return "\n".join(lines)


def main() -> None:
    """Run the console script. Ctrl-C never prints a traceback, at any time and however often it is pressed."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_while_loading)
    try:
        _answer()
    except KeyboardInterrupt:  # pressed again while the first one was handled
        _leave(130)


def _exit_while_loading(*_: object) -> None:
    """Handle Ctrl-C during imports: an exception could be raised in the middle of any module."""
    if "_OUTLAST_COMPLETE" not in os.environ:
        os.write(2, b"\nstopped; nothing was done\n")
    os._exit(130)


def begin() -> None:
    """Let the command handle Ctrl-C from now on."""
    if signal.getsignal(signal.SIGINT) is _exit_while_loading:
        signal.signal(signal.SIGINT, _Debounced())


def end() -> None:
    """Ignore Ctrl-C from now on: the command is over, and another one must not print a traceback."""
    # Not SIG_IGN: Python complains about a signal that is pending when it is set.
    signal.signal(signal.SIGINT, lambda *_: None)


class _Debounced:
    """A handler that raises KeyboardInterrupt once for signals in quick succession.

    Users press Ctrl-C twice, and programs signal both a process and its group. The second KeyboardInterrupt would hit
    the clean-up that the first one started.
    """

    def __init__(self) -> None:
        self._at = -_SIGNAL_GAP_S

    def __call__(self, *_: object) -> None:
        now = time.monotonic()
        if now - self._at >= _SIGNAL_GAP_S:
            self._at = now
            raise KeyboardInterrupt


def _answer() -> None:
    from outlast.cli.shared.sanitize import guard

    _open_streams()
    guard()
    argv = _without_common_options(sys.argv[1:])
    # A shell that requests completions passes no arguments: the request is in the environment.
    completing = "_OUTLAST_COMPLETE" in os.environ
    if argv in (["--help"], ["-h"], ["help"]) or (not argv and not completing):
        print(root_help())
        return
    if argv == ["--version"]:
        from outlast import __version__

        print(f"outlast {__version__}")
        return
    # Imports create many objects and no garbage: collection at the default rate is a tenth of a short command.
    gc.set_threshold(50_000)
    if argv[:1] == ["ps"] and set(argv[1:]) <= _PLAIN and "OUTLAST_LOG" not in os.environ:
        _leave(_list_runs(argv))
    from outlast.cli.app import call

    _leave(call(argv))


def _list_runs(argv: list[str]) -> int:
    """Run the most frequent command without click, whose import takes as long as the listing."""
    from outlast.cli.run.listing import list_runs
    from outlast.cli.shared.terminal import complain
    from outlast.errors import OutlastError

    begin()
    try:
        return list_runs(everything=bool({"--all", "-a"} & set(argv)), as_json="--json" in argv)
    except OutlastError as problem:
        complain(problem.message, hint=problem.hint)
        return problem.exit_code
    except KeyboardInterrupt:
        end()
        print("\nstopped reading; runs and machines are not affected", file=sys.stderr)
        return 130


def _without_common_options(argv: list[str]) -> list[str]:
    """Take `--no-color` and `--verbose` out of the arguments before `--`: they hold for every command."""
    own = argv.index("--") if "--" in argv else len(argv)
    if "--no-color" in argv[:own]:
        os.environ["NO_COLOR"] = "1"
    if "--verbose" in argv[:own]:
        os.environ.setdefault("OUTLAST_LOG", "stderr")
    return [word for word in argv[:own] if word not in ("--no-color", "--verbose")] + argv[own:]


def _open_streams() -> None:
    """Open the standard streams that the parent closed (`>&-`), so that no later file gets their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the process ends


def _leave(code: int) -> None:
    """Exit without tearing the interpreter down, which takes another tenth of a short command.

    Nothing depends on it: durable data is in the workspace, and threads that are left may be cut off.
    """
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
            pass  # stderr is closed as well
    os._exit(code)
