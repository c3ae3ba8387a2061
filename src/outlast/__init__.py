"""outlast: machine-learning experiments that outlast their machines."""

from __future__ import annotations

TYPE_CHECKING = False  # read by type checkers as it is meant; `typing` itself takes longer to load than all of this
if TYPE_CHECKING:
    from typing import Any

    from outlast.trainer.program import trainer
    from outlast.trainer.training import Training, training

__version__ = "0.1.0"
__all__ = ["Training", "trainer", "training"]


def __getattr__(name: str) -> Any:
    """Load a public name on first use: `import outlast` alone is fast."""
    if name == "trainer":
        import outlast.trainer as package  # callable: see there

        return package
    if name in __all__:
        from outlast.trainer import training as module

        return getattr(module, name)
    raise AttributeError(f"module `outlast` has no attribute `{name}`")
