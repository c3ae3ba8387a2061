"""The instance types that outlast chooses from, with dated prices. A spec may name other types."""

from __future__ import annotations

import msgspec

# On demand, Linux, us-east-1. Used if the Pricing API does not answer; other regions cost up to 50 % more.
DATE = "2025-07-01"
GP3_USD_PER_GB_HOUR = 0.08 / 730


class InstanceType(msgspec.Struct, frozen=True):
    name: str
    cpus: float
    memory_gb: float
    usd_per_hour: float
    gpu: str = ""
    gpus: int = 0


def _sizes(family: str, memory_gb_per_cpu: float, large_usd: float) -> list[InstanceType]:
    """Return the sizes of a family from `large` up, in which memory and price are proportional to the CPUs."""
    sizes = {"large": 2, "xlarge": 4, "2xlarge": 8, "4xlarge": 16, "8xlarge": 32, "16xlarge": 64}
    return [
        InstanceType(f"{family}.{size}", cpus, cpus * memory_gb_per_cpu, round(large_usd * cpus / 2, 6))
        for size, cpus in sizes.items()
    ]


_ALL = [
    *_sizes("c6i", 2, 0.085),
    *_sizes("m6i", 4, 0.096),
    *_sizes("r6i", 8, 0.126),
    InstanceType("g4dn.xlarge", 4, 16, 0.526, "T4", 1),
    InstanceType("g4dn.2xlarge", 8, 32, 0.752, "T4", 1),
    InstanceType("g4dn.4xlarge", 16, 64, 1.204, "T4", 1),
    InstanceType("g4dn.12xlarge", 48, 192, 3.912, "T4", 4),
    InstanceType("g5.xlarge", 4, 16, 1.006, "A10G", 1),
    InstanceType("g5.2xlarge", 8, 32, 1.212, "A10G", 1),
    InstanceType("g5.4xlarge", 16, 64, 1.624, "A10G", 1),
    InstanceType("g5.12xlarge", 48, 192, 5.672, "A10G", 4),
    InstanceType("g5.48xlarge", 192, 768, 16.288, "A10G", 8),
    InstanceType("g6.xlarge", 4, 16, 0.8048, "L4", 1),
    InstanceType("g6.2xlarge", 8, 32, 0.9776, "L4", 1),
    InstanceType("p4d.24xlarge", 96, 1152, 21.9576, "A100", 8),
    InstanceType("p5.48xlarge", 192, 2048, 55.04, "H100", 8),
]
KINDS = {kind.name: kind for kind in _ALL}
# Types that are used only by name: `t3.micro` is for supervisor machines, burstable types slow down after a while, and
# the driver of the default GPU image does not support V100.
_BY_NAME = [
    InstanceType("t2.small", 1, 2, 0.023),
    InstanceType("t3.micro", 2, 1, 0.0104),
    InstanceType("t3.medium", 2, 4, 0.0416),
    InstanceType("p3.2xlarge", 8, 61, 3.06, "V100", 1),
    InstanceType("p3.8xlarge", 32, 244, 12.24, "V100", 4),
    InstanceType("p3.16xlarge", 64, 488, 24.48, "V100", 8),
    *_sizes("m5", 4, 0.096),
]
NAMED = {**KINDS, **{kind.name: kind for kind in _BY_NAME}}
