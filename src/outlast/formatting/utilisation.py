"""Text of what runs use of their machines, and advice that follows from it. Pure."""

from __future__ import annotations

from outlast.formatting.quantities import money, size
from outlast.runs.state import Attempt, RunState
from outlast.runs.usage import Sample, Usage
from outlast.spec.quantity import describe_s

# Advice needs this much of an attempt: the first minutes are not typical.
_ADVICE_S = 600.0
# A GPU that is idle for more than this share of the time, and other resources of which less than this share is used.
_IDLE_SHARE, _LOW_SHARE = 0.25, 0.4


def usage_text(usage: Usage) -> str:
    """`CPU 93 % of 4, memory at most 3.1 GB of 15.6 GB, …`: what an attempt used."""
    parts = [f"CPU {percent(usage.cpu)} of {usage.cpus}", f"memory at most {size(usage.memory_bytes)}"]
    if usage.memory_total:
        parts[-1] += f" of {size(usage.memory_total)}"
    traffic = {
        "read": usage.read_bytes,
        "written": usage.written_bytes,
        "received": usage.received_bytes,
        "sent": usage.sent_bytes,
    }
    parts += [f"{size(count)} {what}" for what, count in traffic.items() if count]
    if usage.gpus:
        parts.append(f"{_gpus(usage.gpus)} {percent(usage.gpu)} busy, idle for {describe_s(usage.gpu_idle_s)}")
        parts.append(f"GPU memory at most {size(usage.gpu_memory_bytes)} of {size(usage.gpu_memory_total)}")
    return ", ".join(parts)


def sample_cells(sample: Sample | None) -> tuple[str, str, str]:
    """Return CPU, memory and GPU of a sample as short texts; empty where they are unknown."""
    if sample is None:
        return "", "", ""
    gpu = percent(sum(sample.gpu) / len(sample.gpu)) if sample.gpu else ""
    return percent(sample.cpu), size(sample.memory_bytes), gpu


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def idle_gpu_usd(attempt: Attempt) -> float:
    """Return the cost of the time in which all GPUs of an attempt were idle."""
    return (attempt.usage.gpu_idle_s if attempt.usage else 0.0) / 3600.0 * attempt.price_usd_per_hour


def advice(state: RunState) -> list[str]:
    """Return what the utilisation of the longest attempt suggests for the next run."""
    measured = [a for a in state.attempts if a.usage is not None and a.usage.seconds >= _ADVICE_S]
    if not measured:
        return []
    attempt = max(measured, key=lambda a: a.usage.seconds if a.usage else 0.0)
    usage = attempt.usage
    assert usage is not None
    found = []
    idle_usd = sum(idle_gpu_usd(a) for a in state.attempts)
    if usage.gpus and usage.gpu_idle_s > _IDLE_SHARE * usage.seconds:
        share = percent(usage.gpu_idle_s / usage.seconds)
        found.append(
            f"the GPU was idle for {share} of the time ({money(idle_usd)}): "
            "load data in more workers, or use a machine without a GPU"
        )
    elif usage.gpus and 0 < usage.gpu_memory_bytes < _LOW_SHARE * usage.gpu_memory_total:
        found.append(
            f"at most {size(usage.gpu_memory_bytes)} of {size(usage.gpu_memory_total)} of GPU memory were used: "
            "a larger batch would fit"
        )
    small = usage.memory_total and usage.memory_bytes < _LOW_SHARE * usage.memory_total
    if not usage.gpus and usage.cpus > 1 and usage.cpu < _LOW_SHARE and small:
        needed = max(1, round(usage.cpu * usage.cpus + 0.5))
        found.append(
            f"{percent(usage.cpu)} of {usage.cpus} CPUs and at most {size(usage.memory_bytes)} of memory were used: "
            f"a machine with {needed} CPUs would have sufficed"
        )
    return found


def _gpus(count: int) -> str:
    return "GPU" if count == 1 else f"{count} GPUs"
