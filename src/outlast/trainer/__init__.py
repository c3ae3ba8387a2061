"""The trainer library, in the user's process: resume, save, notice, metrics. Imports only the standard library."""

from __future__ import annotations

import sys
import types
from typing import Any


class _Trainer(types.ModuleType):
    """Makes this package callable: `outlast.trainer` is the package once it is imported, and also the decorator."""

    def __call__(self, *function: Any, **options: Any) -> Any:
        from outlast.trainer.program import trainer

        return trainer(*function, **options)


sys.modules[__name__].__class__ = _Trainer
