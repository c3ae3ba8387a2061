"""A randomized search for the best XGBoost model of census incomes.

A step is a candidate: a preempted search resumes with the next one. Every checkpoint contains the best model so far.
"""

import csv
import os

import numpy
from census import NUMBERS, WORDS, load
from sklearn.compose import make_column_transformer
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import ParameterSampler, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder
from xgboost import XGBClassifier

import outlast

SPACE = {
    "max_depth": [2, 3, 4, 6, 8],
    "learning_rate": [0.03, 0.1, 0.2, 0.3],
    "n_estimators": [50, 100, 200],
    "subsample": [0.6, 0.8, 1.0],
    "min_child_weight": [1, 3, 10],
}


def model_of(candidate, *, seed, jobs):
    categories = slice(len(NUMBERS), len(NUMBERS) + len(WORDS))
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    return make_pipeline(
        make_column_transformer((encoder, categories), remainder="passthrough"),
        XGBClassifier(**candidate, random_state=seed, n_jobs=jobs),
    )


def default_data():
    return "data" if os.path.exists("data/adult.data") else ""


def score_of(model, data, rows, folds):
    """Return the model's cross-validated score, and the data."""
    points, labels = load(data or default_data(), "adult.data", rows=rows)
    points, labels = numpy.array(points, dtype=object), numpy.array(labels)
    return cross_val_score(model, points, labels, cv=folds, scoring="roc_auc").mean(), points, labels


def write_table(folder, candidates, scores):
    """Write a line per candidate, in the format of `outlast sweep export table.csv`."""
    with open(os.path.join(folder, "candidates.csv"), "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["trial", "auc", *SPACE])
        for number, (candidate, score) in enumerate(zip(candidates, scores, strict=False)):
            writer.writerow([number, score, *(candidate[name] for name in SPACE)])


# The state contains the best model, a scikit-learn pipeline, which only pickle can save. Restoring it runs code from
# the checkpoint: do so only where you trust everyone who can write to the workspace.
@outlast.trainer(free=("data", "jobs"), pickle=True)
def train(run, *, data: str = "", rows: int = 0, folds: int = 3, seed: int = 7, jobs: int = -1):
    """Search hyperparameters of XGBoost on the census income data; --train-steps is the number of candidates.

    data: a folder, gs://… or s3://… with adult.data and adult.test; else `data/` if it exists, else synthetic data
    rows: the maximum number of rows; 0 means all
    folds: folds of the cross-validation
    seed: random seed of candidates and models
    jobs: threads of XGBoost; -1 means one per CPU
    """
    points, labels = load(data or default_data(), "adult.data", rows=rows)
    points, labels = numpy.array(points, dtype=object), numpy.array(labels)
    # Candidate n does not depend on the length of the search.
    candidates = list(ParameterSampler(SPACE, n_iter=540, random_state=seed))
    state = run.restore() or {"step": 0, "scores": [], "best": None, "model": None}
    print(f"{len(points)} people; {state['step']} candidates are done", flush=True)
    for step in run.steps(state["step"], total=min(run.train_steps or 540, 540)):
        candidate = candidates[step]
        model = model_of(candidate, seed=seed, jobs=jobs)
        score = cross_val_score(model, points, labels, cv=folds, scoring="roc_auc").mean()
        better = not state["scores"] or score > max(state["scores"])
        state["step"] = step + 1
        state["scores"].append(float(score))
        if better:
            state["best"], state["model"] = candidate, model.fit(points, labels)
        run.log(step, auc=score, best=max(state["scores"]))
        run.save_if_due(step, lambda: state)
        print(f"candidate {step + 1}  auc {score:.4f}{'  the best so far' if better else ''}", flush=True)
    write_table(run.outputs, candidates, state["scores"])
    print(f"best: {state['best']}", flush=True)
    return {"auc": max(state["scores"], default=0.0)}


@train.evaluate
def score(run, state, *, data, rows):
    points, labels = load(data or default_data(), "adult.test", rows=rows)
    points, labels = numpy.array(points, dtype=object), numpy.array(labels)
    chances = state["model"].predict_proba(points)[:, 1]
    return {
        "auc": roc_auc_score(labels, chances),
        "accuracy": float(((chances > 0.5) == labels).mean()),
        "candidates": state["step"],
    }


if __name__ == "__main__":
    train()
