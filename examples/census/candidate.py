"""One candidate as a trial of `outlast sweep`: its parameters are flags, and it logs its score."""

from train import model_of, score_of

import outlast


@outlast.trainer(free=("data", "jobs"))
def candidate(
    run,
    *,
    max_depth: int = 6,
    learning_rate: float = 0.3,
    n_estimators: int = 100,
    subsample: float = 1.0,
    min_child_weight: int = 1,
    data: str = "",
    rows: int = 0,
    folds: int = 3,
    seed: int = 7,
    jobs: int = -1,
):
    """Score one XGBoost model of the census incomes.

    data, rows, folds, seed, jobs: as in train.py; the other flags are those of XGBoost
    """
    chosen = {
        "max_depth": max_depth,
        "learning_rate": learning_rate,
        "n_estimators": n_estimators,
        "subsample": subsample,
        "min_child_weight": min_child_weight,
    }
    score, _, _ = score_of(model_of(chosen, seed=seed, jobs=jobs), data, rows, folds)
    run.log(0, auc=score)
    print(f"auc {score:.4f}", flush=True)


if __name__ == "__main__":
    candidate()
