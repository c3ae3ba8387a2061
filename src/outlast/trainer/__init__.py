"""In the user's process: resume, save, notice, metrics. Imports nothing heavy, and works on a bare laptop."""

from __future__ import annotations

import sys
import types
from typing import Any


class _Trainer(types.ModuleType):
    """`@outlast.trainer` is this package, called: a name of a package can be nothing else once it was imported."""

    def __call__(self, *function: Any, **options: Any) -> Any:
        from outlast.trainer.program import trainer

        return trainer(*function, **options)


sys.modules[__name__].__class__ = _Trainer
