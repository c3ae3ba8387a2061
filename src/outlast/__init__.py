"""outlast: machine-learning experiments that outlast their machines."""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers take it for True; importing `typing` takes longer than this whole module
if TYPE_CHECKING:
    from typing import Any

    from outlast.api.drills import drill
    from outlast.api.run import Run
    from outlast.api.space import Space, submit, workspace
    from outlast.errors import (
        CallFailed,
        Interrupted,
        NoSuchRun,
        OutlastError,
        OverLimit,
        RunCancelled,
        RunFailed,
        SpecError,
        StoreUnreachable,
        UsageError,
        WaitTimeout,
        WorkspaceError,
    )
    from outlast.executor.executor import DelayedCall, Executor
    from outlast.trainer.program import trainer
    from outlast.trainer.training import Training, training

__version__ = "0.1.0"
# Public name → its module. `import outlast` alone is fast: each is loaded on first use.
_PUBLIC = {
    "drill": "outlast.api.drills",
    "Run": "outlast.api.run",
    "Space": "outlast.api.space",
    "submit": "outlast.api.space",
    "workspace": "outlast.api.space",
    "DelayedCall": "outlast.executor.executor",
    "Executor": "outlast.executor.executor",
    "CallFailed": "outlast.errors",
    "Interrupted": "outlast.errors",
    "NoSuchRun": "outlast.errors",
    "OutlastError": "outlast.errors",
    "OverLimit": "outlast.errors",
    "RunCancelled": "outlast.errors",
    "RunFailed": "outlast.errors",
    "SpecError": "outlast.errors",
    "StoreUnreachable": "outlast.errors",
    "UsageError": "outlast.errors",
    "WaitTimeout": "outlast.errors",
    "WorkspaceError": "outlast.errors",
    "Training": "outlast.trainer.training",
    "training": "outlast.trainer.training",
    "trainer": "outlast.trainer",
}
__all__ = [
    "CallFailed",
    "DelayedCall",
    "Executor",
    "Interrupted",
    "NoSuchRun",
    "OutlastError",
    "OverLimit",
    "Run",
    "RunCancelled",
    "RunFailed",
    "Space",
    "SpecError",
    "StoreUnreachable",
    "Training",
    "UsageError",
    "WaitTimeout",
    "WorkspaceError",
    "drill",
    "register_joblib",
    "submit",
    "trainer",
    "training",
    "workspace",
]


def load(name: str) -> Any:
    """Return a public object. Packages that share its name (`outlast.submit`) call it through this function."""
    from importlib import import_module

    module = import_module(_PUBLIC[name])
    # `outlast.trainer.__init__` makes the package callable.
    return module if name == "trainer" else getattr(module, name)


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name in _PUBLIC:
        return load(name)
    raise AttributeError(f"module `outlast` has no attribute `{name}`")


def register_joblib() -> None:
    """Register the joblib backend `outlast`. Done already if joblib was imported before outlast."""
    from outlast.executor.joblib_backend import register

    register()


def load_ipython_extension(shell: Any) -> None:
    """Add the magic `%outlast` to a notebook: `%load_ext outlast`."""
    from outlast.api.magic import register

    register(shell)


def _lazy_backend(**options: Any) -> Any:
    from outlast.executor.joblib_backend import OutlastBackend

    return OutlastBackend(**options)


def _register_if_loaded() -> None:
    """Register the backend with a joblib that is loaded already, without loading anything."""
    import sys

    joblib = sys.modules.get("joblib.parallel")
    if joblib is not None and hasattr(joblib, "register_parallel_backend"):
        joblib.register_parallel_backend("outlast", _lazy_backend)


_register_if_loaded()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
