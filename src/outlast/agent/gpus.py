"""The GPUs that this machine can use. A run that is billed for a GPU must not train on the CPU without notice."""

from __future__ import annotations

import subprocess

from outlast.errors import OutlastError

# A driver that hangs would keep a machine busy and billed.
_ANSWER_S = 120.0
_HINT = "choose an image with the NVIDIA driver: [machine] image, or remove it to use the cloud's default GPU image"


class GpuMissing(OutlastError):
    """The machine lacks GPUs that the run asked for; another machine of the same image would lack them as well."""


def check_gpus(wanted: int) -> None:
    """Raise GpuMissing unless the driver lists at least `wanted` GPUs."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except FileNotFoundError:
        raise GpuMissing(f"this image has no NVIDIA driver, and the run needs {_count(wanted)}", hint=_HINT) from None
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise GpuMissing(f"nvidia-smi does not answer: {problem}", hint=_HINT) from problem
    listed = sum(line.startswith("GPU ") for line in done.stdout.splitlines())
    if done.returncode or listed < wanted:
        reason = (done.stderr or done.stdout).strip().splitlines()[:1]
        text = f": {reason[0]}" if done.returncode and reason else ""
        raise GpuMissing(f"the driver lists {_count(listed)}, and the run needs {wanted}{text}", hint=_HINT)


def _count(gpus: int) -> str:
    return f"{gpus} GPU" if gpus == 1 else f"{gpus} GPUs"
