"""Submission of runs and groups: validate the spec, prepare code and secrets (a `PreparedRun`), write the request.

`outlast.submit` is this package, and also the function of the public API.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import outlast


class _Submit(types.ModuleType):
    """Makes this package callable."""

    def __call__(self, *args: Any, **fields: Any) -> Any:
        return outlast.load("submit")(*args, **fields)


sys.modules[__name__].__class__ = _Submit
