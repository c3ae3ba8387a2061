"""`outlast run` and `outlast submit`: one asks for a run and stays, the other asks and leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from outlast.cli.complete import complete_cloud, complete_image
from outlast.cli.follow import Follower
from outlast.cli.group import GroupFollower, Wanted, ask_for_group
from outlast.cli.options import clouds, json_option, tell_prices, workspace_option
from outlast.cli.progress import working
from outlast.cli.project import Project, load_project, parse_assignment, spec_of, typed
from outlast.cli.terminal import find_workspace, note
from outlast.errors import OutlastError, UsageError
from outlast.workspace import RunRequest, Workspace

F = TypeVar("F", bound=Callable[..., Any])

# Options that stand for one field of the spec: option → (section, field, what it takes, help).
_FIELDS: dict[str, tuple[str, str, str, str]] = {
    "cloud": ("machine", "cloud", "NAME", "On this cloud: local, gcp or aws; several with commas."),
    "cpus": ("machine", "cpus", "N", "Processors: 8, 8+ or 4..16."),
    "memory": ("machine", "memory", "SIZE", "Memory: 32GB or 32GB+."),
    "gpu": ("machine", "gpu", "KIND", "GPUs: T4 or A100:8."),
    "disk": ("machine", "disk", "SIZE", "Disk: 50GB."),
    "type": ("machine", "type", "NAME", "A machine type by its name."),
    "image": ("machine", "image", "NAME", "An image, or a family."),
    "container": ("machine", "container", "IMAGE", "Container image to run the command in."),
    "checkpoint": ("checkpoint", "path", "PATH", "Folder or file that the program writes checkpoints to."),
    "checkpoint-every": ("checkpoint", "every", "TIME", "Least time between commits: 5m."),
    "deadline": ("limits", "deadline", "TIME", "End the run after this long: 12h."),
    "cost": ("limits", "cost_usd", "USD", "End the run at this cost in USD."),
    "crashes": ("limits", "crashes", "N", "Crashes that end the run."),
    "hang-after": ("limits", "hang_after", "TIME", "No output and no checkpoint for so long is a hang."),
}

_COMPLETED = {"cloud": complete_cloud, "image": complete_image}


def spec_options(command: F) -> F:
    """Everything in `outlast.toml` can be said on the command line, too."""
    decorators = [
        click.argument("command", nargs=-1, type=click.UNPROCESSED),
        click.option("--file", "-f", "path", type=click.Path(), default="", metavar="PATH",
                     help="The file to use instead of outlast.toml."),
        click.option("--name", default="", metavar="NAME", help="Name of the run; numbers are added to it."),
        click.option("--param", "-p", "params", multiple=True, metavar="NAME=VALUE", help="A parameter."),
        click.option("--env", "-e", "envs", multiple=True, metavar="NAME=VALUE", help="A variable for the command."),
        click.option("--secret", "secrets", multiple=True, metavar="NAME", help="A variable whose value is secret."),
        click.option("--zone", "zones", multiple=True, metavar="ZONE", help="Only these zones, in this order."),
        click.option("--exclude-zone", "excluded", multiple=True, metavar="ZONE", help="Never this zone."),
        click.option("--spot/--on-demand", "spot", default=None, help="Cheap and preemptible, or neither."),
        click.option("--keep-on-failure", default=None, is_flag=False, flag_value="1h", metavar="[TIME]",
                     help="Keep the machine of a crashed attempt for debugging (1h if no time is given)."),
        click.option("--interactive", is_flag=True, default=None,
                     help="Give the command a terminal, for a debugger; see `outlast attach`."),
        click.option("--set", "settings", multiple=True, metavar="SECTION.FIELD=VALUE", help="Any other field."),
    ]  # fmt: skip
    for option, (_, _, takes, text) in _FIELDS.items():
        found = _COMPLETED.get(option)
        decorators.append(click.option(f"--{option}", default=None, metavar=takes, shell_complete=found, help=text))
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def group_options(command: F) -> F:
    """For files with `[tasks]`."""
    decorators = [
        click.option("--task", default="", metavar="TASK", help="More runs of this task, for a group under way."),
        click.option("--group", default="", metavar="GROUP", help="Which group (the newest that lives)."),
        click.option(
            "--count", default=0, metavar="N", type=click.IntRange(0, 1000), help="How many (the task's least)."
        ),
    ]
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def overrides_from(options: dict[str, Any]) -> dict[str, Any]:
    """The options as the tables of a spec file."""
    table: dict[str, Any] = {}
    if options["name"]:
        table["name"] = options["name"]
    for option, (section, field, _, _) in _FIELDS.items():
        value = options[option.replace("-", "_")]
        if value is not None:
            table.setdefault(section, {})[field] = (
                value if field in ("cloud", "type", "image", "container", "path") else typed(value)
            )
    if options["spot"] is not None:
        table.setdefault("machine", {})["spot"] = options["spot"]
    if options["interactive"]:
        table["interactive"] = True
    for option, field in (("zones", "zones"), ("excluded", "exclude_zones")):
        if options[option]:
            table.setdefault("machine", {})[field] = list(options[option])
    if options["keep_on_failure"] is not None:
        table.setdefault("limits", {})["keep_on_failure"] = options["keep_on_failure"]
    for text in options["params"]:
        name, value = parse_assignment(text, option="--param")
        table.setdefault("params", {})[name] = typed(value)
    for text in options["envs"]:
        name, value = parse_assignment(text, option="--env")
        table.setdefault("env", {})[name] = value
    for name in options["secrets"]:
        table.setdefault("secrets", {})[name] = True
    for text in options["settings"]:
        _set(table, text)
    return table


def _set(table: dict[str, Any], text: str) -> None:
    name, value = parse_assignment(text, option="--set")
    *sections, field = name.split(".")
    if len(sections) > 1:
        raise UsageError(f"--set: `{name}` is no SECTION.FIELD")
    for section in sections:
        table = table.setdefault(section, {})
    table[field] = typed(value)


def ask_for(workspace: Workspace, project: Project, options: dict[str, Any], command: tuple[str, ...]) -> RunRequest:
    """Check and submit; what was left out of the bundle is said."""
    from outlast.submit.run import submit as submit_run

    spec = spec_of(project, overrides_from(options), command)
    if spec.image is not None:
        from outlast.cli.image import with_image

        spec = with_image(workspace, spec, project)
    known = clouds(workspace)
    with looked_after(workspace):
        with working("sending the code"):
            request = submit_run(workspace, known, spec, environment=os.environ, source=project.source, report=note)
        tell_prices(known[spec.machine.cloud])
    return request


@click.command()
@spec_options
@group_options
@click.option("--pull", "destination", default="", metavar="FOLDER", help="Where the outputs go (outputs/RUN).")
@click.option("--no-pull", is_flag=True, help="Leave the outputs in the workspace.")
@click.option("--quiet", "-q", is_flag=True, help="Only the command's own output.")
@workspace_option
def run(workspace_url: str, path: str, command: tuple[str, ...], **options: Any) -> int:
    """Run a command on a machine that may vanish, and follow it to its end.

    Submits, shows the output live and what happens to the machines on the way, fetches the outputs and exits with
    the command's own code. Ctrl-C asks whether to detach or to cancel.
    """
    destination, no_pull = options.pop("destination"), options.pop("no_pull")
    quiet = options.pop("quiet")
    wanted, project = Wanted(options), load_project(path)
    workspace = find_workspace(workspace_url, project)
    if wanted.check(project):
        with looked_after(workspace):
            group, _ = ask_for_group(workspace, project, overrides_from(options), command, wanted)
        return _run_group(workspace, group, destination="" if no_pull else destination or "outputs", quiet=quiet)
    request = ask_for(workspace, project, options, command)
    return see_through(workspace, request, destination=destination, pull=not no_pull, quiet=quiet)


def see_through(
    workspace: Workspace, request: RunRequest, *, destination: str = "", pull: bool = True, quiet: bool = False
) -> int:
    """Supervise and follow a run to its end, and fetch its outputs; the exit code."""
    follower = Follower(workspace, request.run, quiet=quiet)
    if request.spec.interactive and sys.stdin.isatty() and sys.stdout.isatty():
        follower.before = lambda: _enter_terminal(workspace, request.run)
    if not _stay(workspace, request.run, follower):
        with contextlib.suppress(OSError):  # the terminal may be gone, and with it whoever could read this
            note(f"detached; `{request.run}` goes on. Back to it: `outlast logs -f {request.run}`")
        return 130
    if pull and follower.story.state.ending == "finished":
        from outlast.cli.pull import pull_outputs

        pull_outputs(workspace, request.run, destination or os.path.join("outputs", request.run), quiet=quiet)
    return follower.exit_code()


def _run_group(workspace: Workspace, group: str, *, destination: str, quiet: bool) -> int:
    follower = GroupFollower(workspace, group, quiet=quiet)
    if not _stay(workspace, group, follower):
        with contextlib.suppress(OSError):
            note(f"detached; `{group}` goes on. See `outlast ps`; end it with `outlast cancel {group}`")
        return 130
    for run in follower.finished() if destination else ():
        from outlast.cli.pull import pull_outputs

        pull_outputs(workspace, run, os.path.join(destination, run), quiet=quiet)
    return follower.exit_code()


def _stay(workspace: Workspace, run: str, follower: Follower | GroupFollower) -> bool:
    """Supervise and follow until the run is over; False if we detach before.

    However we leave (a closed terminal, a reader of our output that is gone, a bug), the run is handed over.
    """
    try:
        with supervised_here(workspace, then=lambda: _hand_over(workspace)):
            _follow(run, follower)
            follower.wait_until_closed()
    except (Detached, KeyboardInterrupt):
        return False
    return True


def on_signals(handler: Any, *numbers: signal.Signals) -> dict[signal.Signals, Any]:
    """Set the handler, but for signals that `nohup` has us ignore; what was there before."""
    changed = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in changed}


def detach(_number: int, _frame: object) -> None:
    raise Detached


class Detached(Exception):
    pass


def _follow(run: str, follower: Follower | GroupFollower) -> None:
    """Follow to the end; Ctrl-C asks what to do, and only the answer does anything."""
    while True:
        try:
            enter, follower.before = follower.before, None
            if enter is not None:
                enter()
            follower.follow()
            return
        except BrokenPipeError:
            raise
        except OSError as problem:
            # Our output has nowhere to go: the terminal was closed, or a disk is full.
            with contextlib.suppress(OSError):
                note(f"the output cannot be written: {problem.strerror}")
            raise Detached from None
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise Detached from None
            if _ask(run) == "d":
                raise Detached from None
            follower.cancel()


def _enter_terminal(workspace: Workspace, run: str) -> None:
    """Into the terminal of the command as soon as it has one. Whoever leaves it follows the output from then on."""
    from outlast.sync.attach import attach
    from outlast.sync.target import RunTarget

    try:
        attach(RunTarget(workspace, clouds(workspace), run), report=lambda text: note(f"outlast: {text}"))
    except OutlastError as problem:
        note(f"outlast: no terminal: {problem.message}")


def _ask(run: str) -> str:
    try:
        note("")
        return str(
            click.prompt(
                f"`{run}` is running. [d]etach and let it go on, or [c]ancel it?",
                type=click.Choice(["d", "c"]),
                default="d",
                show_choices=False,
                err=True,
            )
        )
    except (click.Abort, KeyboardInterrupt):
        note("")
        return "d"  # a second Ctrl-C: out of here, and nothing is lost by it


@contextlib.contextmanager
def supervised_here(workspace: Workspace, *, then: Callable[[], None]) -> Iterator[threading.Event]:
    """Supervise meanwhile; the event is set when that ends. `then` is done last, however we leave, and also if we are
    interrupted before the supervisor is up: what was submitted must not be left to nobody."""
    stop = threading.Event()
    previous: dict[signal.Signals, Any] = {}
    thread: threading.Thread | None = None
    try:
        previous = on_signals(detach, signal.SIGTERM, signal.SIGHUP)
        from outlast.supervisor.loop import Supervisor

        supervisor = Supervisor(workspace, clouds(workspace), report=_loud_bugs)
        thread = threading.Thread(target=supervisor.run, kwargs={"stop": stop}, name="supervisor", daemon=True)
        thread.start()
        yield stop
    finally:
        # Not to be interrupted: a second Ctrl-C would leave the runs without a supervisor.
        previous = {**on_signals(signal.SIG_IGN, signal.SIGTERM, signal.SIGHUP, signal.SIGINT), **previous}
        stop.set()
        if thread is not None and thread.is_alive():
            thread.join(10.0)
        then()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _loud_bugs(text: str) -> None:
    if text.startswith("bug:"):
        note(text)


@contextlib.contextmanager
def looked_after(workspace: Workspace) -> Iterator[None]:
    """Ask for runs in here: Ctrl-C says that what was submitted goes on, so somebody has to see to it."""
    try:
        yield
    except KeyboardInterrupt:
        with contextlib.suppress(OutlastError):
            _hand_over(workspace)
        raise


def _hand_over(workspace: Workspace) -> None:
    """This run, or others of this workspace, may need a supervisor when this one leaves."""
    from outlast.app.background import start_supervisor

    if workspace.heartbeats() or workspace.wakeups():
        start_supervisor(workspace)


@click.command()
@spec_options
@group_options
@json_option
@workspace_option
def submit(workspace_url: str, path: str, command: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Submit a run and leave: a supervisor in the background takes over.

    Prints the name of the run.
    """
    from outlast.app.background import start_supervisor

    wanted, project = Wanted(options), load_project(path)
    workspace = find_workspace(workspace_url, project)
    if wanted.check(project):
        with looked_after(workspace):
            group, runs = ask_for_group(workspace, project, overrides_from(options), command, wanted)
        start_supervisor(workspace)
        _tell_group(workspace, group, runs, as_json=as_json)
        return 0
    request = ask_for(workspace, project, options, command)
    start_supervisor(workspace)
    if as_json:
        import json

        click.echo(json.dumps({"run": request.run, "workspace": workspace.url}))
    else:
        click.echo(request.run)
        note(f"follow it with `outlast logs -f {request.run}`")
    return 0


def _tell_group(workspace: Workspace, group: str, runs: list[str], *, as_json: bool) -> None:
    if as_json:
        import json

        click.echo(json.dumps({"group": group, "runs": runs, "workspace": workspace.url}))
        return
    click.echo(group)
    note(f"{', '.join(runs)}; see `outlast ps`, follow one with `outlast logs -f RUN`")
