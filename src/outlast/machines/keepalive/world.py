"""The values of `outlast machine keep`: its view of one machine, its stored memory, and its possible steps."""

from __future__ import annotations

from typing import Literal

import msgspec

from outlast.clouds.cloud import Machine, Offer
from outlast.records.machines import MachineRecord
from outlast.spec.quantity import describe_s

Ending = Literal["finished", "failed", "budget", "gone"]
Then = Literal["leave", "stop", "delete"]


class KeepaliveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `outlast machine keep`."""

    # Empty: keep only the machine running.
    command: str = ""
    budget_usd: float = 0.0
    halt_after_s: float = 0.0
    # Files below these folders of the machine count as progress, like output and metrics.
    watch: tuple[str, ...] = ()
    crashes: int = 3
    then: Then = "stop"


class Relocation(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that moves to another zone: image its disk, delete it, launch it again from the image.

    Each stage is stored before its work begins: `copying` the disk, `leaving` (the image is complete), `relaunching`
    (the old machine is gone).
    """

    image: str
    stage: Literal["copying", "leaving", "relaunching"]
    zone: str
    type: str
    spot: bool
    disk_gb: float
    metadata: dict[str, str] = {}
    labels: dict[str, str] = {}
    cost_usd: float = 0.0


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The state that survives a restart of the process, stored in the workspace as `keep/<name>.json`."""

    # Identifies the command on the machine, so that a restarted process finds it there.
    id: str
    options: KeepaliveOptions
    # How often this program booted the machine.
    boots: int = 0
    crashes: int = 0
    # The last start of the command whose exit was counted.
    counted: int = 0
    refusals: int = 0
    refused_until: float = 0.0
    moves: int = 0
    move: Relocation | None = None
    ending: Ending | None = None
    why: str = ""
    exit_code: int | None = None


class KeptJob(msgspec.Struct, frozen=True, kw_only=True):
    """The newest start of the command, as reported by the machine."""

    # 0: it was never started.
    number: int = 0
    # It began to run; a start that was only claimed may have been interrupted.
    went: bool = False
    alive: bool = False
    exit_code: int | None = None
    # The end of its output: usually the error.
    last_line: str = ""
    # The machine was being preempted when the command ended.
    noticed: bool = False
    # This program ended the command because it made no progress.
    halted: bool = False
    # It was started since the machine was last booted.
    this_boot: bool = True
    claimed_s: float = 0.0
    idle_s: float = 0.0


class KeepaliveView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one decision depends on."""

    now: float
    memory: Memory
    machine: Machine | None = None
    machine_record: MachineRecord | None = None
    # Why the cloud or the workspace could not be read.
    unreachable: str = ""
    # None: not probed, or not reachable for the reason in `unresponsive`, for `unresponsive_s`.
    job: KeptJob | None = None
    unresponsive: str = ""
    unresponsive_s: float = 0.0
    cost_usd: float = 0.0
    # Offers in other zones; fetched only after the machine's own zone had no capacity.
    elsewhere: tuple[Offer, ...] = ()


class Rest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Nothing to do now. `steady`: everything is as requested."""

    why: str
    steady: bool = False
    trouble: bool = False


class StartMachine(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start the stopped machine in its zone."""


class StopUnresponsive(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Stop a running machine that cannot be reached by ssh; the next round starts it."""

    why: str


class Copy(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Make an image of the disk of a machine whose zone has no capacity."""

    image: str


class Leave(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Delete the old machine: its image is complete."""


class Relaunch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Launch the machine from its image, under the same name."""

    offer: Offer


class Arrive(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The relaunched machine exists: delete the image."""


class StartJob(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start the command with this start number. May be repeated: each number starts once."""

    number: int
    why: str


class Kill(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End a command that makes no progress."""

    number: int
    why: str


class Count(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Count a failed command."""

    number: int
    why: str


class End(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Finish: leave, stop or delete the machine, by `then`."""

    ending: Ending
    why: str
    exit_code: int | None = None
    then: Then = "leave"


Step = Rest | StartMachine | StopUnresponsive | Copy | Leave | Relaunch | Arrive | StartJob | Kill | Count | End


def describe(name: str, step: Step) -> str:
    """Return a line of log for a step."""
    match step:
        case Rest():
            return f"{name}: {step.why}"
        case StartMachine():
            return f"{name}: starting the machine"
        case StopUnresponsive():
            return f"{name}: restarting the machine: {step.why}"
        case Copy():
            return f"{name}: no capacity in its zone; copying its disk to image {step.image}"
        case Leave():
            return f"{name}: deleting the old machine; its disk is copied"
        case Relaunch():
            return f"{name}: launching it in {step.offer.zone} from the copy of its disk"
        case Arrive():
            return f"{name}: it runs again; deleting the copy of its disk"
        case StartJob():
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
