"""Says on stderr what a command is at when nothing was said for two seconds, and then ever less often.

For commands that are silent while they work. Those that follow, ask or draw by themselves are not in the table.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import click

from outlast.cli import terminal

# Silence for so long, before the first word, the second …; the last goes for all that follow.
_PAUSES_S = (2.0, 8.0, 20.0, 60.0)
# With these a command shows what happens while it happens.
_FOLLOWS = {"--watch", "--follow", "-f", "--wait", "--help", "-h"}

WORKS = {
    "doctor": "checking",
    "plot": "reading metrics",
    "pull": "copying outputs",
    "cancel": "cancelling",
    "handover": "handing over",
    "preempt": "taking the machine away",
    "simulate": "playing",
    "rerun": "submitting",
    "compare": "reading the runs",
    "sweep best": "reading trials",
    "sweep export": "reading trials",
    "sweep plot": "drawing",
    "sweep show": "reading trials",
    "sweep stop": "stopping trials",
    "machine cp": "copying",
    "machine create": "waiting for the machine",
    "machine delete": "deleting the machine",
    "machine list": "asking the clouds",
    "machine resize": "resizing",
    "machine set": "changing the machine",
    "machine show": "asking the cloud",
    "machine snapshot": "making the image",
    "machine start": "waiting for the machine",
    "machine stop": "stopping the machine",
    "image build": "building",
    "image delete": "deleting the image",
    "image list": "asking the clouds",
    "image promote": "changing the family",
    "image prune": "deleting images",
    "image rollback": "changing the family",
    "image share": "copying the image",
    "image show": "asking the cloud",
    "volume create": "waiting for the volume",
    "volume delete": "deleting the volume",
    "volume list": "asking the clouds",
    "volume ls": "listing",
    "volume mount": "mounting",
    "volume populate": "copying",
    "volume resize": "resizing",
    "volume show": "asking the cloud",
    "volume unmount": "unmounting",
    "db allow": "changing who may enter",
    "db backup": "backing up",
    "db check": "connecting",
    "db create": "waiting for the database",
    "db delete": "deleting the database",
    "db list": "asking the clouds",
    "db restore": "restoring",
    "db revoke": "changing who may enter",
    "db show": "asking the cloud",
    "db url": "asking the cloud",
    "cluster down": "deleting machines",
    "cluster jobs": "asking the head",
    "cluster list": "asking the clouds",
    "cluster matrix": "submitting",
    "cluster status": "asking the head",
    "cluster stop": "stopping the job",
    "cluster submit": "submitting",
    "cluster up": "waiting for the cluster",
    "cost": "adding up",
    "prices": "asking the clouds",
    "plan": "asking the clouds",
    "reap": "deleting machines",
    "setup aws": "asking the cloud",
    "setup gcp": "asking the cloud",
    "local delete": "deleting the machine",
}


@contextmanager
def working(what: str, *, pauses_s: Sequence[float] = _PAUSES_S) -> Iterator[None]:
    """While this lasts, whoever looks on knows that it does."""
    over = threading.Event()
    begun = terminal.said_at = time.monotonic()
    thread = threading.Thread(target=_tell, args=(what, begun, over, pauses_s), name="working", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def at_work(argv: Sequence[str]) -> AbstractContextManager[None]:
    """`working`, if these words call a command that is silent while it works."""
    # What comes after `--` is somebody else's command.
    own = argv[: argv.index("--")] if "--" in argv else argv
    what = WORKS.get(" ".join(own[:2])) or WORKS.get(" ".join(own[:1]))
    return working(what) if what and not _FOLLOWS & set(own) else nullcontext()


def confirm(question: str) -> bool:
    """Ask on stderr. Nobody is told that we are at work while it is they who are waited for. Raises click.Abort."""
    terminal.said_at = float("inf")
    try:
        return click.confirm(question, err=True)
    finally:
        terminal.said_at = time.monotonic()


def _tell(what: str, begun: float, over: threading.Event, pauses_s: Sequence[float]) -> None:
    from outlast.spec.quantity import describe_s

    told = 0
    while True:
        pause_s = pauses_s[min(told, len(pauses_s) - 1)]
        silent_s = time.monotonic() - terminal.said_at
        if over.wait(max(0.01, min(pause_s, pause_s - silent_s))):
            return
        if time.monotonic() - terminal.said_at >= pause_s:
            terminal.note(f"{what} … {describe_s(time.monotonic() - begun)}")
            told += 1
