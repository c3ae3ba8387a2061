"""The random numbers of this process: Python's, and NumPy's and PyTorch's where somebody has loaded them."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any


def dice() -> dict[str, Any]:
    """Where each generator is."""
    found: dict[str, Any] = {"python": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        found["numpy"] = numpy.random.get_state()
    if (torch := sys.modules.get("torch")) is not None:
        found["torch"] = torch.get_rng_state()
        if torch.cuda.is_available():
            found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def set_dice(found: dict[str, Any]) -> None:
    """Put them where they were; a generator of something that is not loaded here is nobody's."""
    random.setstate(found["python"])
    if "numpy" in found and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.set_state(found["numpy"])
    if "torch" in found and (torch := sys.modules.get("torch")) is not None:
        torch.set_rng_state(found["torch"])
        if "cuda" in found and torch.cuda.device_count() == len(found["cuda"]):
            torch.cuda.set_rng_state_all(found["cuda"])


@contextlib.contextmanager
def dice_left_alone() -> Iterator[None]:
    """Whatever is drawn inside was never drawn."""
    before = dice()
    try:
        yield
    finally:
        set_dice(before)
