"""State of the random number generators of this process: Python's, and NumPy's and PyTorch's if they are loaded."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

from outlast.trainer.arrays import check_generator


def rng_state() -> dict[str, Any]:
    """Return the state of each generator."""
    found: dict[str, Any] = {"python": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        found["numpy"] = numpy.random.get_state()
    if (torch := sys.modules.get("torch")) is not None:
        found["torch"] = torch.get_rng_state()
        if torch.cuda.is_available():
            found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def checked_python(state: Any) -> Any:
    """Refuse a state that is not one of Python's current generator. Raises ValueError."""
    # Python would compute with the elements of an older state, of whatever type they are.
    if type(state) is not tuple or len(state) != 3 or state[0] != 3 or type(state[1]) is not tuple:
        raise ValueError("not a state of Python's generator")
    return state


def set_rng_state(found: dict[str, Any]) -> None:
    """Restore each generator whose library is loaded. Raises ValueError for an invalid state."""
    random.setstate(checked_python(found["python"]))
    if "numpy" in found and (numpy := sys.modules.get("numpy")) is not None:
        name, key, position, *gauss = found["numpy"]
        check_generator({"pos": position})
        numpy.random.set_state((name, key, position, *gauss))
    if "torch" in found and (torch := sys.modules.get("torch")) is not None:
        torch.set_rng_state(found["torch"])
        if "cuda" in found and torch.cuda.device_count() == len(found["cuda"]):
            torch.cuda.set_rng_state_all(found["cuda"])


@contextlib.contextmanager
def rng_preserved() -> Iterator[None]:
    """Restore all RNG state on exit."""
    before = rng_state()
    try:
        yield
    finally:
        set_rng_state(before)
