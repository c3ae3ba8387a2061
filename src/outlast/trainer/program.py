"""`@outlast.trainer`: a typed function becomes a program with the flags that all trainers share and its own."""

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
        help="where checkpoints are: a folder, gs://BUCKET/PATH or s3://BUCKET/PATH; "
        "else the run's checkpoint folder, on a laptop .outlast-local",
    ),
    Parameter(
        name="train_steps",
        kind=int,
        default=None,
        may_be_none=True,
        help="steps in all, over all attempts; `none`: for ever. Inherited from the checkpoint",
    ),
    Parameter(
        name="checkpoint_steps",
        kind=int,
        default=None,
        may_be_none=True,
        help="steps between checkpoints; else the best interval from what a save costs",
    ),
    Parameter(
        name="eval_steps",
        kind=int,
        default=None,
        may_be_none=True,
        help="evaluate at each checkpoint and at the end, with so many batches; not given: never while training",
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
    """A trainer as a program. Call it under `if __name__ == "__main__"`; `function` is the function itself."""

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
        """Register what `--mode evaluate` calls: `(run, state)`, and by name any of the trainer's parameters."""
        self._evaluate = function
        return function

    def __call__(self, argv: Sequence[str] | None = None) -> None:
        """Parse the command line (or these words) and do what it says. Bad input exits with 2, without a traceback."""
        try:
            self._carry_out(argv)
        except OutlastError as problem:
            print(f"error: {problem.message}", file=sys.stderr)
            if problem.hint:
                print(f"hint: {problem.hint}", file=sys.stderr)
            sys.exit(problem.exit_code)

    def _carry_out(self, argv: Sequence[str] | None) -> None:
        around = detect_environment()
        given = from_params(around.params, (*OWN, *self.parameters)) if around.on_machine else {}
        about = (inspect.getdoc(self.function) or "").partition("\n\n")[0]
        given |= parse(argv, self.parameters, OWN, about=about)
        settings = _DEFAULTS | {name: given[name] for name in _DEFAULTS if name in given}
        settings |= {"replicated": self.replicated, "pickle": self.pickle}
        _check_steps(settings)
        place = job_folder(settings["job_dir"], around)
        if settings["mode"] == "train" or place.mirror is not None:
            _make(place)
        if place.mirror is not None:
            place.mirror.fetch()
        newest, ending = place.newest(), place.ending()
        stored = newest[1] if newest else ending["notes"] if ending else {}
        params = self._settle(given, stored.get("params", {}), place)
        if "train_steps" not in given:
            settings["train_steps"] = stored.get("train_steps")
        notes = {
            "params": {name: value for name, value in params.items() if name not in self.free},
            "train_steps": settings["train_steps"],
        }
        if settings["mode"] == "evaluate":
            self._score(place, newest, lambda: TrainingJob(place, params=params, settings=settings, notes=notes))
        elif ending is not None and not _goes_on(settings["train_steps"], ending["notes"].get("train_steps")):
            _say(around.rank, _finished(place, newest, ending))
        else:
            if newest:
                told = " ".join(f"{name}={value}" for name, value in params.items())
                _say(around.rank, f"resuming {place.shown} at step {newest[0]}: {told}".rstrip(": "))
            self._train(TrainingJob(place, params=params, settings=settings, notes=notes))

    def _settle(self, given: Mapping[str, Any], stored: Mapping[str, Any], place: JobFolder) -> dict[str, Any]:
        """Each hyperparameter: as given, else as stored with the checkpoint, else its default. Raises UsageError."""
        settled: dict[str, Any] = {}
        for parameter in self.parameters:
            name = parameter.name
            known = name in stored and name not in self.free
            before = parameter.read(stored[name], f"{place.shown}: {parameter.flag}") if known else None
            if known and name in given and json.dumps(given[name]) != json.dumps(before):
                raise UsageError(
                    f"{parameter.flag} is {before} in {place.shown}, and {given[name]} was given",
                    hint=f"leave {parameter.flag} out to go on with {before}, or start anew in another --job-dir",
                )
            if name not in given and not known and parameter.required:
                raise UsageError(
                    f"{parameter.flag} must be given", hint=f"it is {parameter.kind.__name__}, without a default"
                )
            settled[name] = given.get(name, before if known else parameter.default)
        return settled

    def _train(self, job: TrainingJob) -> None:
        attach(job)
        if self._evaluate is None and job.eval_steps is not None:
            raise self._unknown_how()
        if self._evaluate is not None:
            job.evaluator = lambda state: self._evaluated(job, state)
        if job.place.mirror is not None and job.around.rank == 0:
            job.place.mirror.start()
        metrics = self.function(job, **job.params)
        if not job.ended:
            job.done(dict(metrics) if isinstance(metrics, Mapping) else None)

    def _score(self, place: JobFolder, newest: object, job_of: Callable[[], TrainingJob]) -> None:
        if self._evaluate is None:
            raise self._unknown_how()
        nothing = UsageError(
            f"{place.shown}: no checkpoint to evaluate",
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

    def _unknown_how(self) -> UsageError:
        return UsageError(
            f"`{self.function.__name__}` cannot be evaluated: nobody said how",
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
            raise UsageError(f"--{name.replace('_', '-')}: {settings[name]} must be at least 1")


def _make(place: JobFolder) -> None:
    try:
        os.makedirs(place.around.checkpoints, exist_ok=True)
    except OSError as problem:
        raise UsageError(f"--job-dir {place.shown}: {problem.strerror}") from problem


def _goes_on(total: int | None, before: int | None) -> bool:
    """More steps are wanted than the finished job had; one that ended by itself has nothing to go on with."""
    return before is not None and (total is None or total > before)


def _finished(place: JobFolder, newest: tuple[int, Any] | None, ending: Mapping[str, Any]) -> str:
    step = f" at step {newest[0]}" if newest else ""
    metrics = ", ".join(f"{name} {value:.6g}" for name, value in ending.get("metrics", {}).items())
    told = f" ({metrics})" if metrics else ""
    return (
        f"{place.shown} is finished{step}{told}: nothing to do. "
        "More --train-steps go on with it, another --job-dir starts anew"
    )


def _say(rank: int, text: str) -> None:
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

    `free`: parameters that may differ from attempt to attempt (paths, numbers of workers); they are not stored, and
    contradict nothing. `replicated`: all ranks hold the same state, so that rank 0 saves for all. `pickle`: save and
    restore any Python object, which runs code from the checkpoint on a restore.
    """
    if function is None:
        return lambda function: Program(function, free=free, replicated=replicated, pickle=pickle)
    return Program(function, free=free, replicated=replicated, pickle=pickle)
