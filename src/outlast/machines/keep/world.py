"""What a keeper of one machine sees, remembers and may do. Values, and nothing that acts."""

from __future__ import annotations

from typing import Literal

import msgspec

from outlast.clouds.cloud import Machine, Offer
from outlast.spec.quantity import describe_s
from outlast.workspace.hand import Hand

Ending = Literal["finished", "failed", "budget", "gone"]
Then = Literal["leave", "stop", "delete"]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of the keeper."""

    # Empty: only the machine is kept.
    command: str = ""
    budget_usd: float = 0.0
    halt_after_s: float = 0.0
    # Files below these folders of the machine count as signs of life, beside the output and the metrics.
    watch: tuple[str, ...] = ()
    crashes: int = 3
    then: Then = "stop"


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A machine on its way to another zone: its disk becomes an image, the machine goes, another one comes from it.

    The stages are written down before what they name is done: `copying` the disk, `leaving` (the image is whole),
    `settling` (the old machine is gone).
    """

    image: str
    stage: Literal["copying", "leaving", "settling"]
    zone: str
    type: str
    spot: bool
    disk_gb: float
    metadata: dict[str, str] = {}
    labels: dict[str, str] = {}
    cost_usd: float = 0.0


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What a keeper must not forget when it is started again. In the workspace, as `keep/<name>.json`."""

    # Names the command on the machine: a keeper that comes back finds what it started there.
    id: str
    order: Order
    # How often the machine was booted by us.
    boots: int = 0
    crashes: int = 0
    # The last start of the command whose end was counted.
    counted: int = 0
    refusals: int = 0
    refused_until: float = 0.0
    moves: int = 0
    move: Move | None = None
    ending: Ending | None = None
    why: str = ""
    exit_code: int | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The command as the machine tells of it: its newest start."""

    # 0: it was never started.
    number: int = 0
    # It got as far as running; a start that was only claimed may have been cut short.
    went: bool = False
    alive: bool = False
    exit_code: int | None = None
    # The machine was being taken away when it ended.
    noticed: bool = False
    # We ended it, because it did nothing.
    halted: bool = False
    # It was started since the machine was last booted.
    this_boot: bool = True
    claimed_s: float = 0.0
    idle_s: float = 0.0


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a round decides on."""

    now: float
    memory: Memory
    machine: Machine | None = None
    hand: Hand | None = None
    # Why the cloud or the workspace could not be asked.
    blind: str = ""
    # None: nobody asked, or nobody answered, for the reason in `deaf`, since `deaf_s`.
    job: Job | None = None
    deaf: str = ""
    deaf_s: float = 0.0
    cost_usd: float = 0.0
    # Where else there may be room; asked only when there was none where the machine is.
    elsewhere: tuple[Offer, ...] = ()


class Rest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Nothing to do now. `settled`: all is as it was asked for."""

    why: str
    settled: bool = False
    trouble: bool = False


class Revive(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Boot the stopped machine, with its disk, where it is."""


class Restart(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Switch off a machine that runs and lets nobody in; the next round boots it."""

    why: str


class Copy(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Make an image of the disk of a machine that cannot be booted where it is."""

    image: str


class Leave(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Delete the old machine: its image is whole."""


class Settle(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Make the machine anew from its image, under the same name."""

    offer: Offer


class Arrive(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """It is there: the image has done its work."""


class Run(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start the command, for the so-manieth time. Repeating it starts nothing twice."""

    number: int
    why: str


class Kill(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End a command that does nothing."""

    number: int
    why: str


class Count(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Remember that the command ended badly."""

    number: int
    why: str


class End(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """It is over: do with the machine what was asked, and leave."""

    ending: Ending
    why: str
    exit_code: int | None = None
    then: Then = "leave"


Step = Rest | Revive | Restart | Copy | Leave | Settle | Arrive | Run | Kill | Count | End


def describe(name: str, step: Step) -> str:
    """A step in a sentence."""
    match step:
        case Rest():
            return f"{name}: {step.why}"
        case Revive():
            return f"{name}: starting it again"
        case Restart():
            return f"{name}: switching it off to start it anew: {step.why}"
        case Copy():
            return f"{name}: no room where it is; copying its disk to the image {step.image}"
        case Leave():
            return f"{name}: deleting it where it is; its disk is copied"
        case Settle():
            return f"{name}: making it anew in {step.offer.zone} from its disk, under the same name"
        case Arrive():
            return f"{name}: it is back; deleting the copy of its disk"
        case Run():
            return f"{name}: starting the command: {step.why}"
        case Kill():
            return f"{name}: ending the command: {step.why}"
        case Count():
            return f"{name}: {step.why}"
        case End():
            after = {"leave": "", "stop": "; stopping the machine", "delete": "; deleting the machine"}[step.then]
            return f"{name}: {step.ending}: {step.why}{after}"


def quiet_for(seconds: float) -> str:
    return f"no output, no changed file and no metric for {describe_s(seconds)}"
