"""The Optuna study of a sweep, rebuilt from its story.

Optuna is imported on demand: drivers and plots need it, machines do not.
"""

from __future__ import annotations

import datetime
import math
import warnings
from collections.abc import Mapping
from typing import Any

from outlast.errors import OutlastError, UsageError
from outlast.extras import install_hint
from outlast.spec.spec import Dimension, ParamValue, SweepSpec
from outlast.spec.sweep import values_of
from outlast.sweep.state import SweepState, Trial


def load_optuna() -> Any:
    try:
        import optuna
    except ImportError as problem:
        raise OutlastError(
            f"cannot import Optuna, which chooses the trials: {problem}", hint=install_hint("outlast[sweep]")
        ) from problem
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class Search:
    """A study in memory that follows the story. It is rebuilt when it differs from the story."""

    def __init__(self, name: str, search: SweepSpec) -> None:
        self.optuna = load_optuna()
        self.name = name
        self.search = search
        self.distributions = {name: self._distribution(found) for name, found in search.params.items()}
        self.study = self._fresh()

    def _fresh(self) -> Any:
        directions = ["minimize" if goal.startswith("min:") else "maximize" for goal in self.search.goals]
        return self.optuna.create_study(
            study_name=self.name, directions=directions, sampler=self._sampler(0), pruner=self._pruner()
        )

    def _distribution(self, found: Dimension) -> Any:
        kinds = self.optuna.distributions
        if found.kind == "choice":
            return kinds.CategoricalDistribution(found.choices)
        high = found.high
        if found.step:
            high = found.low + math.floor((high - found.low) / found.step + 1e-9) * found.step
        if found.kind == "int":
            return kinds.IntDistribution(int(found.low), int(high), log=found.log, step=int(found.step) or 1)
        return kinds.FloatDistribution(found.low, high, log=found.log, step=found.step or None)

    def _sampler(self, number: int) -> Any:
        """Return the sampler of one trial. Its seed depends on the trial alone, so every driver draws the same."""
        samplers, seed = self.optuna.samplers, self.search.seed + number
        match self.search.sampler:
            case "random":
                return samplers.RandomSampler(seed=seed)
            case "grid":
                space = {name: list(values_of(found) or ()) for name, found in self.search.params.items()}
                # The seed also orders the grid, which must be the same for all trials.
                return samplers.GridSampler(space, seed=self.search.seed)
            case "nsga2":
                return samplers.NSGAIISampler(seed=seed)
            case _:
                return samplers.TPESampler(seed=seed, constant_liar=True)

    def _pruner(self) -> Any:
        pruners, least = self.optuna.pruners, self.search.min_steps
        match self.search.pruner:
            case "asha":
                return pruners.SuccessiveHalvingPruner(min_resource=least)
            case "hyperband":
                return pruners.HyperbandPruner(min_resource=least)
            case "median":
                return pruners.MedianPruner(n_warmup_steps=least)
            case _:
                return pruners.NopPruner()

    # Following the story

    def follow(self, state: SweepState) -> None:
        """Bring the study into the state of the story."""
        known = self.study.get_trials(deepcopy=False)
        if len(known) > len(state.trials):
            # The event of a suggested trial was illegal: another driver was first.
            self.study, known = self._fresh(), []
        for trial in state.trials[: len(known)]:
            if not trial.open and not known[trial.number].state.is_finished():
                self._finish(trial)
        for trial in state.trials[len(known) :]:
            self.study.add_trial(self._frozen(trial))

    def _finish(self, trial: Trial) -> None:
        states = self.optuna.trial.TrialState
        if trial.outcome == "complete":
            self.study.tell(trial.number, values=list(trial.values))
        else:
            self.study.tell(trial.number, state=states.PRUNED if trial.outcome == "pruned" else states.FAIL)

    def _frozen(self, trial: Trial) -> Any:
        states = self.optuna.trial.TrialState
        state = {"": states.RUNNING, "complete": states.COMPLETE, "pruned": states.PRUNED}.get(
            trial.outcome, states.FAIL
        )
        frozen = self.optuna.trial.create_trial(
            state=state,
            params=trial.params,
            distributions=self.distributions,
            values=list(trial.values) if trial.outcome == "complete" else None,
            intermediate_values={int(step): value for step, value in trial.reports.items()},
            system_attrs=dict(trial.attrs),
            user_attrs={"run": trial.run, **({"why": trial.why} if trial.why else {}), **trial.metrics},
        )
        frozen.datetime_start = datetime.datetime.fromtimestamp(trial.asked_at)
        if not trial.open:
            frozen.datetime_complete = datetime.datetime.fromtimestamp(trial.ended_at)
        return frozen

    # Suggesting and pruning

    def ask(self, number: int) -> tuple[dict[str, ParamValue], dict[str, Any]]:
        """Return the parameters of the next trial, and the sampler's state for it."""
        self.study.sampler = self._sampler(number)
        suggested = self.study.ask(self.distributions)
        assert suggested.number == number, "the study differs from the story"
        attrs = self.study.get_trials(deepcopy=False)[number].system_attrs
        return {name: _plain(value) for name, value in suggested.params.items()}, dict(attrs)

    def judge(self, number: int, reports: Mapping[int, float]) -> bool:
        """Report the new values of a running trial in the order of steps. Return whether to prune it."""
        frozen = self.study.get_trials(deepcopy=False)[number]
        trial = self.optuna.trial.Trial(self.study, frozen._trial_id)
        last = max(frozen.intermediate_values, default=-1)
        for step in sorted(reports):
            if step > last:
                trial.report(reports[step], step)
                if trial.should_prune():
                    return True
        return False

    def reported(self, number: int) -> tuple[dict[str, float], dict[str, Any]]:
        """Return the reported values of a trial, and the pruner's state."""
        frozen = self.study.get_trials(deepcopy=False)[number]
        return {str(step): value for step, value in frozen.intermediate_values.items()}, dict(frozen.system_attrs)

    # Analysis and export

    def importance(self) -> dict[str, float]:
        """Return the importance of each parameter for the first goal; empty while there are too few trials."""
        module = self.optuna.importance
        states = self.optuna.trial.TrialState
        complete = self.study.get_trials(deepcopy=False, states=(states.COMPLETE,))
        if len(complete) < 4 or len(self.search.params) < 2 or len({trial.values[0] for trial in complete}) < 2:
            return {}
        # This evaluator considers low values good.
        sign = 1.0 if self.search.goals[0].startswith("min:") else -1.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = module.get_param_importances(
                self.study,
                evaluator=module.PedAnovaImportanceEvaluator(),
                target=lambda trial: sign * trial.values[0],
            )
        return {name: float(part) for name, part in found.items()}

    def export(self, path: str) -> None:
        """Write the study to an Optuna file: `.db` for SQLite, `.log` for a journal. Raises UsageError."""
        storages = self.optuna.storages
        if path.endswith((".db", ".sqlite", ".sqlite3")):
            storage: Any = storages.RDBStorage(f"sqlite:///{path}")
        else:
            storage = storages.JournalStorage(storages.journal.JournalFileBackend(path))
        try:
            there = self.optuna.create_study(
                study_name=self.name, directions=self.study.directions, storage=storage, sampler=self._sampler(0)
            )
        except self.optuna.exceptions.DuplicatedStudyError as problem:
            raise UsageError(
                f"`{path}` already contains a study `{self.name}`", hint="choose another file"
            ) from problem
        there.add_trials(self.study.get_trials(deepcopy=False))


def _plain(value: Any) -> ParamValue:
    """Convert NumPy's types, which JSON does not support."""
    found: ParamValue = value.item() if hasattr(value, "item") else value
    return found
