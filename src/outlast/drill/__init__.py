"""The drill: preempts a training on purpose, at the worst moments, and judges whether it survives.

`outlast.drill` is this package, and also the function of the public API.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import outlast


class _Drill(types.ModuleType):
    """Makes this package callable."""

    def __call__(self, *args: Any, **fields: Any) -> Any:
        return outlast.load("drill")(*args, **fields)


sys.modules[__name__].__class__ = _Drill
