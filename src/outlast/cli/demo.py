"""`outlast demo`: a run that survives two preemptions, on the local cloud, in half a minute."""

from __future__ import annotations

import importlib.resources
import itertools
import os
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING

import click

from outlast.app.submission import submit_spec
from outlast.app.supervision import new_supervisor
from outlast.cli.run.follow import Follower
from outlast.cli.shared.command import command
from outlast.cli.shared.options import clouds, workspace_option
from outlast.cli.shared.terminal import find_workspace, note
from outlast.cli.shared.timeline import legend, sums, timeline
from outlast.clouds.traits import DEFAULT_CLOUD
from outlast.errors import OutlastError
from outlast.spec.parse import parse

if TYPE_CHECKING:
    from outlast.app.types import Workspace

# (share of the epochs after which the machine is preempted, with notice)
_PREEMPTIONS = ((0.3, True), (0.65, False))


@command(section="start", interrupt="stopped the demo; `outlast reap` deletes machines that it may have left")
@click.option("--epochs", metavar="N", default=60, show_default=True, help="Epochs to train.")
@workspace_option
def demo(epochs: int, workspace_url: str) -> int:
    """Train a small network, preempt it twice, and watch it recover.

    It runs on the local cloud. One preemption comes with a notice, one without. A timeline follows at the end.
    """
    workspace = find_workspace(workspace_url)
    note("A small neural network learns to separate two spirals on a spot machine of the local cloud.")
    note("The machine will be preempted twice: once with a notice, once without.\n")
    with tempfile.TemporaryDirectory() as folder:
        source = importlib.resources.files("outlast.demo").joinpath("train.py").read_bytes()
        with open(os.path.join(folder, "train.py"), "wb") as file:
            file.write(source)
        spec = parse(
            {
                "name": "demo",
                "command": [sys.executable, "train.py", str(epochs)],
                "code": {"path": folder},
                "checkpoint": {"path": "checkpoints"},
            }
        )
        request = submit_spec(workspace, spec, source="demo")
    stop = threading.Event()
    supervisor = new_supervisor(workspace)
    threading.Thread(target=supervisor.run, kwargs={"stop": stop}, daemon=True).start()
    threading.Thread(target=_preempt, args=(workspace, request.run, epochs), daemon=True).start()
    follower = Follower(workspace, request.run)
    try:
        follower.follow()
    except KeyboardInterrupt:
        from outlast.app.actions import cancel_run

        cancel_run(workspace, request.run)
        follower.wait_until_closed()
        stop.set()
        note("\ncancelled the demo; nothing is left running")
        return 130
    state = follower.wait_until_closed()
    stop.set()
    now = time.time()
    click.echo("\n" + timeline(state, now))
    click.echo(legend(state) + "\n")
    click.echo(sums(state, now))
    note(f"\nthe full story: `outlast show {request.run}`; for your own project: `outlast init`, then `outlast run`")
    return follower.exit_code()


def _preempt(workspace: Workspace, run: str, epochs: int) -> None:
    """Preempt the machine after the given shares of the epochs; stop if the run ends earlier."""
    story = workspace.story(run)
    for attempt, (part, notice) in enumerate(_PREEMPTIONS, 1):
        while True:
            state = story.refresh()
            if state.ending:
                return
            if _epochs_trained(workspace, run) >= part * epochs and len(state.attempts) >= attempt and state.current:
                break
            time.sleep(0.1)
        try:
            clouds()[DEFAULT_CLOUD].preempt(state.current.machine, notice=notice)
        except OutlastError as problem:
            note(f"could not preempt: {problem.message}")


def _epochs_trained(workspace: Workspace, run: str) -> int:
    """Return the highest epoch in the output of the trainer."""
    from outlast.app.following import attempts_to_read, log_pieces

    for attempt in reversed(attempts_to_read(workspace, run, 0, follow=False)):
        tokens = b"".join(log_pieces(workspace, run, attempt)).split()
        epochs = [after for before, after in itertools.pairwise(tokens) if before == b"epoch" and b"/" in after]
        if epochs:
            return int(epochs[-1].split(b"/")[0])
    return 0
