"""outlast: machine-learning experiments that outlast their machines."""

from __future__ import annotations

# Not from `typing`, which would be most of what `import outlast` costs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from outlast.trainer.training import Training, training

__version__ = "0.1.0"
__all__ = ["Training", "training"]


def __getattr__(name: str) -> object:
    """`outlast.training` is loaded when it is asked for."""
    if name in __all__:
        from outlast.trainer import training as module

        return getattr(module, name)
    raise AttributeError(f"module `outlast` has no attribute `{name}`")
