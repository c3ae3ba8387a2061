"""`@outlast.trainer`: turns a typed function into a program, with the flags of all trainers and its own."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from outlast.errors import OutlastError, UsageError
from outlast.trainer.environment import detect_environment
from outlast.trainer.flags import Parameter, from_params, parameters_of, parse
from outlast.trainer.job import JobFolder, TrainingJob, job_folder
from outlast.trainer.training import attach

Metrics = Mapping[str, float]

OWN = (
    Parameter(
        name="job_dir",
        kind=str,
        default="",
        help="folder of the checkpoints: a path, gs://BUCKET/PATH or s3://BUCKET/PATH; "
        "default: the run's checkpoint folder, on a laptop .outlast-local",
    ),
    Parameter(
        name="train_steps",
        kind=int,
        default=None,
        may_be_none=True,
        help="total steps over all attempts; `none`: forever. Inherited from the checkpoint",
    ),
    Parameter(
        name="checkpoint_steps",
        kind=int,
        default=None,
        may_be_none=True,
        help="steps between checkpoints; default: the best interval by the measured cost of a save",
    ),
    Parameter(
        name="eval_steps",
        kind=int,
        default=None,
        may_be_none=True,
        help="evaluate at each checkpoint and at the end, with this many batches; default: never while training",
    ),
    Parameter(
        name="mode",
        kind=str,
        default="train",
        choices=("train", "evaluate"),
        help="train, or print the metrics of the newest checkpoint as a line of JSON",
    ),
)
_DEFAULTS = {parameter.name: parameter.default for parameter in OWN}


class Program:
    """A trainer as a program. Call it under `if __name__ == "__main__"`; `function` is the decorated function."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        free: Sequence[str] = (),
        replicated: bool = False,
        pickle: bool = False,
    ) -> None:
        self.function = function
        self.parameters = parameters_of(function)
        self.free = frozenset(free)
        self.replicated = replicated
        self.pickle = pickle
        self._evaluate: Callable[..., Metrics] | None = None
        unknown = sorted(self.free - {parameter.name for parameter in self.parameters})
        if unknown:
            raise UsageError(f"@outlast.trainer(free=…): `{function.__name__}` has no parameter `{unknown[0]}`")

    def evaluate(self, function: Callable[..., Metrics]) -> Callable[..., Metrics]:
        """Register the function for `--mode evaluate`: `(run, state)`, and by name any of the trainer's parameters."""
        self._evaluate = function
        return function

    def __call__(self, argv: Sequence[str] | None = None) -> None:
        """Parse the command line (or `argv`) and run it. Invalid input exits with 2, without a traceback."""
        try:
            self._carry_out(argv)
        except OutlastError as problem:
            print(f"error: {problem.message}", file=sys.stderr)
            if problem.hint:
                print(f"hint: {problem.hint}", file=sys.stderr)
            sys.exit(problem.exit_code)

    def _carry_out(self, argv: Sequence[str] | None) -> None:
        environment = detect_environment()
        given = from_params(environment.params, (*OWN, *self.parameters)) if environment.on_machine else {}
        about = (inspect.getdoc(self.function) or "").partition("\n\n")[0]
        given |= parse(argv, self.parameters, OWN, about=about)
        settings = _DEFAULTS | {name: given[name] for name in _DEFAULTS if name in given}
        settings |= {"replicated": self.replicated, "pickle": self.pickle}
        _check_steps(settings)
        folder = job_folder(settings["job_dir"], environment)
        if settings["mode"] == "train" or folder.mirror is not None:
            _make(folder)
        if folder.mirror is not None:
            folder.mirror.fetch()
        newest, ending = folder.newest(), folder.ending()
        stored = newest[1] if newest else ending["notes"] if ending else {}
        params = self._resolve(given, stored.get("params", {}), folder)
        if "train_steps" not in given:
            settings["train_steps"] = stored.get("train_steps")
        notes = {
            "params": {name: value for name, value in params.items() if name not in self.free},
            "train_steps": settings["train_steps"],
        }
        if settings["mode"] == "evaluate":
            self._print_metrics(
                folder, newest, lambda: TrainingJob(folder, params=params, settings=settings, notes=notes)
            )
        elif ending is not None and not _goes_on(settings["train_steps"], ending["notes"].get("train_steps")):
            _report(environment.rank, _finished(folder, newest, ending))
        else:
            if newest:
                values = " ".join(f"{name}={value}" for name, value in params.items())
                _report(environment.rank, f"resuming {folder.shown} at step {newest[0]}: {values}".rstrip(": "))
            self._train(TrainingJob(folder, params=params, settings=settings, notes=notes))

    def _resolve(self, given: Mapping[str, Any], stored: Mapping[str, Any], folder: JobFolder) -> dict[str, Any]:
        """Return each hyperparameter: given, else stored with the checkpoint, else its default. Raises UsageError."""
        resolved: dict[str, Any] = {}
        for parameter in self.parameters:
            name = parameter.name
            known = name in stored and name not in self.free
            before = parameter.read(stored[name], f"{folder.shown}: {parameter.flag}") if known else None
            if known and name in given and json.dumps(given[name]) != json.dumps(before):
                raise UsageError(
                    f"{parameter.flag} is {before} in {folder.shown}, but {given[name]} was given",
                    hint=f"omit {parameter.flag} to continue with {before}, or start over in another --job-dir",
                )
            if name not in given and not known and parameter.required:
                raise UsageError(
                    f"{parameter.flag} is required",
                    hint=f"its type is {parameter.kind.__name__}, and it has no default",
                )
            resolved[name] = given.get(name, before if known else parameter.default)
        return resolved

    def _train(self, job: TrainingJob) -> None:
        attach(job)
        if self._evaluate is None and job.eval_steps is not None:
            raise self._no_evaluate()
        if self._evaluate is not None:
            job.evaluator = lambda state: self._evaluated(job, state)
        if job.folder.mirror is not None and job.environment.rank == 0:
            job.folder.mirror.start()
        metrics = self.function(job, **job.params)
        if not job.ended:
            job.done(dict(metrics) if isinstance(metrics, Mapping) else None)

    def _print_metrics(self, folder: JobFolder, newest: object, job_of: Callable[[], TrainingJob]) -> None:
        if self._evaluate is None:
            raise self._no_evaluate()
        nothing = UsageError(
            f"{folder.shown}: no checkpoint to evaluate",
            hint="train first, with the same --job-dir, or name another one",
        )
        if newest is None:
            raise nothing
        job = job_of()
        state = job.restore()
        if not job.resumed:
            raise nothing
        metrics = self._evaluated(job, state)
        print(json.dumps({name: float(value) for name, value in metrics.items()}), flush=True)
        job.close()

    def _no_evaluate(self) -> UsageError:
        return UsageError(
            f"`{self.function.__name__}` has no function for evaluation",
            hint=f"register a function `(run, state)` with @{self.function.__name__}.evaluate",
        )

    def _evaluated(self, job: TrainingJob, state: Any) -> Metrics:
        assert self._evaluate is not None
        wanted = inspect.signature(self._evaluate).parameters
        everything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in wanted.values())
        chosen = {name: value for name, value in job.params.items() if everything or name in wanted}
        return self._evaluate(job, state, **chosen)


def _check_steps(settings: Mapping[str, Any]) -> None:
    for name in ("train_steps", "checkpoint_steps", "eval_steps"):
        if settings[name] is not None and settings[name] < 1:
            raise UsageError(f"--{name.replace('_', '-')}: expected a whole number of at least 1, got {settings[name]}")


def _make(folder: JobFolder) -> None:
    try:
        os.makedirs(folder.environment.checkpoints, exist_ok=True)
    except OSError as problem:
        raise UsageError(f"--job-dir {folder.shown}: {problem.strerror}") from problem


def _goes_on(total: int | None, before: int | None) -> bool:
    """Return whether more steps are requested than the finished job had. A job without a total ended by itself."""
    return before is not None and (total is None or total > before)


def _finished(folder: JobFolder, newest: tuple[int, Any] | None, ending: Mapping[str, Any]) -> str:
    step = f" at step {newest[0]}" if newest else ""
    metrics = ", ".join(f"{name} {value:.6g}" for name, value in ending.get("metrics", {}).items())
    shown = f" ({metrics})" if metrics else ""
    return (
        f"{folder.shown} is finished{step}{shown}: nothing to do. "
        "Use more --train-steps to continue it, or another --job-dir to start over"
    )


def _report(rank: int, text: str) -> None:
    if rank == 0:
        print(f"outlast: {text}", file=sys.stderr, flush=True)


@overload
def trainer(function: Callable[..., Any], /) -> Program: ...
@overload
def trainer(
    *, free: Sequence[str] = (), replicated: bool = False, pickle: bool = False
) -> Callable[[Callable[..., Any]], Program]: ...


def trainer(
    function: Callable[..., Any] | None = None,
    /,
    *,
    free: Sequence[str] = (),
    replicated: bool = False,
    pickle: bool = False,
) -> Program | Callable[[Callable[..., Any]], Program]:
    """Turn `def train(run, *, lr: float = 0.1)` into a program.

    `free`: parameters that may differ from attempt to attempt (paths, numbers of workers); they are not stored.
    `replicated`: all ranks have the same state, so that rank 0 saves for all. `pickle`: save and restore any Python
    object; a restore then runs code from the checkpoint.
    """
    if function is None:
        return lambda function: Program(function, free=free, replicated=replicated, pickle=pickle)
    return Program(function, free=free, replicated=replicated, pickle=pickle)
