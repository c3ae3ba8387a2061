"""outlast: machine-learning experiments that outlast their machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast.trainer.program import trainer
    from outlast.trainer.training import Training, training

__version__ = "0.1.0"
__all__ = ["Training", "trainer", "training"]


def __getattr__(name: str) -> Any:
    """What is offered is loaded when it is asked for: `import outlast` alone costs next to nothing."""
    if name == "trainer":
        import outlast.trainer as package  # callable: see there

        return package
    if name in __all__:
        from outlast.trainer import training as module

        return getattr(module, name)
    raise AttributeError(f"module `outlast` has no attribute `{name}`")
