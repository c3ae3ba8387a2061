"""The requirements on a machine, as ranges; shared by specs and clouds."""

from __future__ import annotations

import msgspec

from outlast.spec.gpus import GpuChoice
from outlast.spec.network import NetworkSpec


class Range(msgspec.Struct, frozen=True, kw_only=True):
    """A closed range: `8` is 8..8, `8+` is 8..∞."""

    low: float = 0.0
    high: float | None = None

    def __contains__(self, value: float) -> bool:
        return self.low <= value and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        if self.high is None:
            return f"{self.low:g}+"
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g}..{self.high:g}"


class Requirements(msgspec.Struct, frozen=True, kw_only=True):
    """The requirements of a run on its machine; a cloud answers with offers."""

    cpus: Range = Range()
    memory_gb: Range = Range()
    gpu: str = ""
    gpus: int = 0
    # Alternatives to these GPUs, the preferred first.
    other_gpus: tuple[GpuChoice, ...] = ()
    disk_gb: float = 10.0
    type: str = ""
    image: str = ""
    spot: bool = True
    zones: tuple[str, ...] = ()
    exclude_zones: tuple[str, ...] = ()
    # Where the data is: without `zones`, only regions on its continent are offered, or with `anywhere` all.
    near: str = ""
    anywhere: bool = False
    # The network of the machine; None: that of this process.
    network: NetworkSpec | None = None

    def by_gpu(self) -> tuple[Requirements, ...]:
        """Return the requirements with each alternative of the GPUs alone, in their order."""
        others = ((other.name, other.count) for other in self.other_gpus)
        alone = msgspec.structs.replace
        return tuple(alone(self, gpu=gpu, gpus=gpus, other_gpus=()) for gpu, gpus in ((self.gpu, self.gpus), *others))
