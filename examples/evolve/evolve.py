"""A master that breeds genomes, workers that evaluate them, and a database between them.

Workers claim trials through Optuna: a trial has a heartbeat, and is assigned again if its worker disappears. Genomes
are identified by their hash, so none is bred twice. Master and workers keep no state outside the database.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import sys
import time
import warnings

import optuna
from fence import Fence
from optuna.exceptions import TrialPruned
from optuna.storages import RDBStorage, RetryFailedTrialCallback
from optuna.trial import FrozenTrial, TrialState

GENES = 6
RESULTS = int(os.environ.get("RESULTS", "200"))
TAKES_S = float(os.environ.get("TAKES_S", "0.5"))
# The number of genomes bred ahead of the workers.
AHEAD = 12
BEAT_S, GRACE_S = 2, 8
STUDY = os.environ.get("STUDY", "zdt1")
SPACE = {f"x{n}": optuna.distributions.FloatDistribution(0.0, 1.0) for n in range(GENES)}


def open_study() -> optuna.Study:
    url = os.environ["DATABASE_URL"].replace("mysql://", "mysql+pymysql://", 1)
    storage = RDBStorage(
        url,
        engine_kwargs={"pool_pre_ping": True, "pool_recycle": 60},
        heartbeat_interval=BEAT_S,
        grace_period=GRACE_S,
        heartbeat_stale_trial_callback=RetryFailedTrialCallback(),
    )
    return optuna.create_study(
        study_name=STUDY, storage=storage, directions=["minimize", "minimize"], load_if_exists=True
    )


def judge(genome: dict[str, float]) -> tuple[float, float]:
    """Compute ZDT1, slowly."""
    time.sleep(TAKES_S)
    first = genome["x0"]
    g = 1.0 + 9.0 * sum(genome[f"x{n}"] for n in range(1, GENES)) / (GENES - 1)
    return first, g * (1.0 - math.sqrt(first / g))


def name_of(genome: dict[str, float]) -> str:
    return hashlib.sha256(json.dumps(genome, sort_keys=True).encode()).hexdigest()[:16]


def results(study: optuna.Study) -> dict[str, FrozenTrial]:
    """Return complete trials by the hash of the genome."""
    found = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return {trial.user_attrs["genome"]: trial for trial in reversed(found)}


def worker() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    study = open_study()

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        if "genome" not in trial.user_attrs:
            raise TrialPruned("another worker claimed the last trial first")
        return judge({gene: trial.suggest_float(gene, 0.0, 1.0) for gene in SPACE})

    while True:
        if not study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            optuna.storages.fail_stale_trials(study)
            time.sleep(0.2)
            continue
        try:
            study.optimize(objective, n_trials=1)
        except RuntimeError as problem:
            # This worker was suspended until the trial was assigned to another one, whose result counts.
            print(f"too late: {problem}", flush=True)


def breed(study: optuna.Study, known: dict[str, FrozenTrial], generation: int) -> dict[str, float]:
    """Return a child of the best genomes, by NSGA-II, in memory."""
    population = optuna.create_study(
        directions=["minimize", "minimize"], sampler=optuna.samplers.NSGAIISampler(population_size=20, seed=generation)
    )
    population.add_trials(list(known.values()))
    return dict(population.ask(SPACE).params)


def retry_stale(study: optuna.Study, fence: Fence) -> None:
    """Enqueue trials again whose worker died before its first heartbeat."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        age_s = time.time() - trial.datetime_start.timestamp() if trial.datetime_start else 0.0
        if age_s > 10 * GRACE_S + 10 * TAKES_S:
            with fence.hold():
                study.tell(trial.number, state=TrialState.FAIL)
                if "genome" in trial.user_attrs:
                    study.enqueue_trial(trial.system_attrs["fixed_params"], user_attrs=trial.user_attrs)


def master() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = open_study()
    fence = Fence(os.environ["DATABASE_URL"], int(os.environ.get("OUTLAST_FENCE", "1")))
    fence.begin()
    print(f"master {fence.number}", flush=True)
    reported = -1
    while True:
        trials = study.get_trials(deepcopy=False)
        known = results(study)
        bred = {trial.user_attrs["genome"] for trial in trials if "genome" in trial.user_attrs}
        if len(known) != reported:
            reported = len(known)
            print(f"results {reported} of {RESULTS}", flush=True)
        if len(known) >= RESULTS:
            break
        open_claims = len(bred) - len(known)
        for _ in range(min(AHEAD - open_claims, RESULTS - len(bred))):
            genome = breed(study, known, len(bred))
            if name_of(genome) not in bred:
                with fence.hold():
                    study.enqueue_trial(genome, user_attrs={"genome": name_of(genome)})
                bred.add(name_of(genome))
        retry_stale(study, fence)
        time.sleep(0.3)
    publish(study, known)


def publish(study: optuna.Study, known: dict[str, FrozenTrial]) -> None:
    """Write the Pareto front as a table and as an image."""
    folder = os.environ.get("OUTLAST_OUTPUT_DIR", ".")
    front = sorted((trial.values for trial in study.best_trials), key=lambda values: values[0])
    with open(os.path.join(folder, "pareto.csv"), "w", newline="") as file:
        csv.writer(file).writerows([("first", "second"), *front])
    with open(os.path.join(folder, "results.json"), "w") as file:
        json.dump({name: trial.values for name, trial in known.items()}, file)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.figure(figsize=(6, 4))
    pyplot.scatter(*zip(*(trial.values for trial in known.values()), strict=True), s=8, label=f"{len(known)} genomes")
    pyplot.step(*zip(*front, strict=True), where="post", color="tab:red", label=f"Pareto front: {len(front)}")
    pyplot.xlabel("first objective")
    pyplot.ylabel("second objective")
    pyplot.legend()
    pyplot.tight_layout()
    pyplot.savefig(os.path.join(folder, "pareto.png"), dpi=120)


if __name__ == "__main__":
    {"master": master, "worker": worker}[sys.argv[1]]()
