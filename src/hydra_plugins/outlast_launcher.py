"""The Hydra launcher `outlast`: the jobs of `--multirun` are calls of an `outlast.Executor`.

Hydra finds this module by its namespace package, and loads it at the start of every program of Hydra: what it needs
is imported when jobs are launched. A machine needs hydra-core, and nothing of this module: it travels by value.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.launcher import Launcher

# `hydra.launcher`: the arguments of `outlast.Executor`. Hydra accepts known keys only; null leaves one out.
DEFAULTS: dict[str, Any] = {
    "_target_": "hydra_plugins.outlast_launcher.OutlastLauncher",
    "_convert_": "all",
    "max_workers": 4,
    "min_workers": 0,
    "per_machine": 1,
    "idle": "2m",
    "workspace": "",
    "name": "hydra",
    **dict.fromkeys(
        (
            *("cloud", "cpus", "memory", "gpu", "disk", "spot", "fallback", "type", "image", "container", "zones"),
            *("exclude_zones", "reservation", "machine", "env", "secrets", "code", "environment", "data", "volumes"),
            *("databases", "clouds", "setup"),
        )
    ),
}
ConfigStore.instance().store(group="hydra/launcher", name="outlast", node=DEFAULTS, provider="outlast")


class OutlastLauncher(Launcher):  # type: ignore[misc]
    """Runs each job on a machine and copies the job's output folder back."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = {name: value for name, value in options.items() if value is not None}
        self._context: Any = None
        self._function: Any = None
        self._config: Any = None

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        self._context, self._function, self._config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
        """Run the jobs and return what each returned, in their order; a failed one raises when its result is read."""
        import cloudpickle
        from hydra.core.utils import setup_globals

        from outlast.executor.executor import Executor

        setup_globals()
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        Path(str(self._config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        configs = [self._job(list(one), initial_job_idx + place) for place, one in enumerate(job_overrides)]
        with Executor(**self._options) as pool:
            futures = [pool.submit(execute, self._function, config) for config in configs]
            return [_received(*future.result()) for future in futures]

    def _job(self, overrides: list[str], number: int) -> Any:
        """Return the configuration of one job; it is composed here, where the files of the configuration are."""
        from omegaconf import open_dict

        config = self._context.config_loader.load_sweep_config(self._config, overrides)
        with open_dict(config):
            config.hydra.job.id = f"{self._options.get('name', 'hydra')}-{number}"
            config.hydra.job.num = number
        return config


def execute(function: Any, config: Any) -> tuple[Any, dict[str, bytes]]:
    """Run one job on a machine; return Hydra's `JobReturn` and the files of its output folder, by path."""
    from hydra._internal.callbacks import Callbacks
    from hydra.core.utils import JobRuntime, run_job, setup_globals
    from hydra.types import HydraContext

    setup_globals()
    JobRuntime.instance().set("name", config.hydra.job.name)
    # The folder of the caller may not exist here, or be another one.
    folder = tempfile.mkdtemp(prefix="hydra-")
    place = str(config.hydra.sweep.dir)
    try:
        _set(config, "hydra.sweep.dir", folder)
        result = run_job(
            hydra_context=HydraContext(config_loader=_NotLoaded(), callbacks=Callbacks(config)),
            task_function=function,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        _set(result.hydra_cfg, "hydra.sweep.dir", place)
        _set(result.hydra_cfg, "hydra.runtime.output_dir", os.path.join(place, str(config.hydra.sweep.subdir)))
        found = [path for path in Path(folder).rglob("*") if path.is_file()]
        files = {os.path.join(place, str(path.relative_to(folder))): path.read_bytes() for path in found}
        return result, files
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _set(config: Any, key: str, value: str) -> None:
    """Set a value of a configuration that Hydra has locked."""
    from omegaconf import OmegaConf, flag_override

    parent, _, name = key.rpartition(".")
    with flag_override(OmegaConf.select(config, parent), ["readonly", "struct"], [False, False]):
        OmegaConf.select(config, parent)[name] = value


class _NotLoaded:
    """Replaces the loader of configurations in a job: its configuration is complete."""


def _received(result: Any, files: Mapping[str, bytes]) -> Any:
    """Write the files of a job where a local launcher would have left them."""
    for path, body in files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(body)
    return result
