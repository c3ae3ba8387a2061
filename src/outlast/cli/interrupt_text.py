"""What Ctrl-C leaves behind, for each command: a sentence on what goes on and how to get back to it.

Commands that ask or tidy up when they are interrupted do that themselves; this is what is said of the others.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

_LOOK = "stopped looking; what was looked at goes on"
_NOTHING = "stopped; nothing was changed"
_HALF = "stopped half way; the same command goes on from there"
_REPEAT = "it may be done or not; the same command does what is left"
_RUN = (
    "a run that was submitted goes on: `outlast ps`; `outlast logs -f last` follows it, `outlast cancel last` ends it"
)

LEAVES = {
    "demo": "stopped the demo; `outlast reap` deletes what it may have left",
    "init": _NOTHING,
    "doctor": _NOTHING,
    "run": _RUN,
    "submit": _RUN,
    "ps": _LOOK,
    "show": _LOOK,
    "logs": _LOOK,
    "plot": _LOOK,
    "pull": f"{_HALF}; files that are there are whole",
    "cancel": "the cancellation may be recorded or not: `outlast ps` tells; the same command makes sure",
    "handover": _REPEAT,
    "preempt": "the machine may be on its way out; its run goes on elsewhere: `outlast show last`",
    "drill": "stopped the drill; its machines are deleted",
    "simulate": _NOTHING,
    "rerun": _RUN,
    "compare": _LOOK,
    "burst": _RUN,
    "sweep best": _LOOK,
    "sweep export": "stopped; the file may be half written",
    "sweep list": _LOOK,
    "sweep plot": _LOOK,
    "sweep resume": "trials that run go on; `outlast sweep resume` takes the sweep up again",
    "sweep show": _LOOK,
    "sweep start": "trials that run go on; `outlast sweep resume` takes the sweep up again",
    "sweep stop": _REPEAT,
    "machine cp": _HALF,
    "machine create": "stopped; what there was of it is deleted again, and `outlast reap` finds it if that failed",
    "machine delete": f"{_REPEAT}; until then it costs",
    "machine keep": "stopped keeping; the machines go on, and nobody revives them",
    "machine list": _LOOK,
    "machine resize": f"{_REPEAT}; the machine may be stopped: `outlast machine start NAME`",
    "machine serial": _LOOK,
    "machine set": _REPEAT,
    "machine show": _LOOK,
    "machine snapshot": "the image may still be made: `outlast image list`; the machine may be stopped",
    "machine ssh": "left the machine; it goes on, and costs: `outlast machine list`",
    "machine ssh-config": _REPEAT,
    "machine start": "stopped waiting; it may still come up, and cost: see `outlast machine list`",
    "machine stop": f"{_REPEAT}; until it is off it costs",
    "image build": "stopped the build; its machine is deleted, and `outlast reap` finds it if that failed",
    "image delete": _REPEAT,
    "image list": _LOOK,
    "image promote": _REPEAT,
    "image prune": _REPEAT,
    "image rollback": "it may be done or not: `outlast image list` tells",
    "image share": _REPEAT,
    "image show": _LOOK,
    "volume create": "a volume that was asked for may still be made, and cost: `outlast volume list`",
    "volume delete": f"{_REPEAT}; until then it costs",
    "volume show": _LOOK,
    "volume list": _LOOK,
    "volume ls": _LOOK,
    "volume mount": "it may be mounted: `outlast volume unmount PATH` undoes it",
    "volume populate": _HALF,
    "volume resize": _REPEAT,
    "volume unmount": _REPEAT,
    "db allow": _REPEAT,
    "db backup": "the copy may still be made: `outlast db show NAME` lists what there is",
    "db check": _NOTHING,
    "db create": "a database that was asked for may still be made, and cost: `outlast db list`",
    "db delete": f"{_REPEAT}; until then it costs",
    "db show": _LOOK,
    "db list": _LOOK,
    "db restore": "the database may be put back half way: repeat it before you use it",
    "db revoke": _REPEAT,
    "db shell": "left the database; it goes on",
    "db url": _NOTHING,
    "cluster attach": "left the head; what runs there goes on",
    "cluster dashboard": "closed the tunnel; the cluster goes on, and costs: `outlast cluster down` ends it",
    "cluster down": "machines may be left, and cost; `outlast cluster down` again deletes them",
    "cluster exec": "left the head; the cluster goes on, and costs: `outlast cluster down` ends it",
    "cluster jobs": _LOOK,
    "cluster list": _LOOK,
    "cluster logs": "stopped looking; the job goes on, and so does the cluster",
    "cluster matrix": "jobs that were submitted go on: `outlast cluster jobs`",
    "cluster status": "stopped looking; the cluster goes on, and costs: `outlast cluster down` ends it",
    "cluster stop": _REPEAT,
    "cluster submit": "a job that was submitted goes on: `outlast cluster jobs`; `outlast cluster logs -f` follows it",
    "cluster up": "what there was of it is taken down; `outlast reap` deletes what is left of that",
    "ui": "the page is closed; everything that it showed goes on, and `outlast ui` opens it again",
    "sync": "stopped syncing; the machine has what was copied so far",
    "attach": "left the terminal; what runs there goes on",
    "tunnel": "closed the tunnel; the machine goes on",
    "cost": _LOOK,
    "prices": _LOOK,
    "limits": _REPEAT,
    "supervise": "the supervisor has left; the runs go on: `outlast supervise` looks after them again",
    "plan": _NOTHING,
    "reap": f"{_REPEAT}; until then it costs",
    "setup aws": _HALF,
    "setup gcp": _HALF,
    "local delete": _REPEAT,
    "local env": _NOTHING,
    "local machines": _LOOK,
    "local serial": _LOOK,
    "local serve": "the server has stopped; its machines and buckets stay, and the same command serves them again",
    "local set": _REPEAT,
    "local zones": _LOOK,
    "completion": _NOTHING,
}


def command_of(root: click.Command, argv: Sequence[str]) -> str:
    """The command that these words call, without its options: `machine create`."""
    found: list[str] = []
    at = root
    for word in argv:
        if not isinstance(at, click.Group):
            break
        if word.startswith("-"):
            continue
        context = click.Context(at)
        below = at.get_command(context, word)
        if below is None:
            break
        found.append(word)
        at = below
    return " ".join(found)


def sentence(root: click.Command, argv: Sequence[str]) -> str:
    return LEAVES.get(command_of(root, argv), _NOTHING)


@contextmanager
def interruptible() -> Iterator[None]:
    """However we are asked to leave, what was begun is ended on the way out."""

    def leave(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
