"""The census search on a cluster: Ray Tune evaluates candidates on all workers and keeps finished folds.

A trial writes its fold scores to a checkpoint in `storage_path`, which all machines share. When its worker is
preempted, the trial resumes on another one after the finished folds. When the head is lost, the same command resumes
the unfinished trials.
"""

import argparse
import json
import os
import tempfile

import numpy
from census import NUMBERS, WORDS, load
from ray import tune
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder

SPACE = {
    "max_depth": tune.choice([2, 3, 4, 6, 8]),
    "learning_rate": tune.choice([0.03, 0.1, 0.2, 0.3]),
    "max_iter": tune.choice([50, 100, 200]),
    "min_samples_leaf": tune.choice([5, 20, 50]),
}


def model_of(candidate):
    categories = slice(len(NUMBERS), len(NUMBERS) + len(WORDS))
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    encoded = make_column_transformer((encoder, categories), remainder="passthrough")
    return make_pipeline(encoded, HistGradientBoostingClassifier(**candidate, random_state=7))


def score(candidate, *, data, rows, folds):
    """Run one trial: a step per fold, each with a checkpoint."""
    points, labels = load(data, "adult.data", rows=rows)
    points, labels = numpy.array(points, dtype=object), numpy.array(labels)
    scores = []
    if (before := tune.get_checkpoint()) is not None:
        with before.as_directory() as folder, open(f"{folder}/scores.json", encoding="utf-8") as file:
            scores = json.load(file)
    parts = list(StratifiedKFold(folds, shuffle=True, random_state=7).split(points, labels))
    for train, test in parts[len(scores) :]:
        model = model_of(candidate).fit(points[train], labels[train])
        scores.append(float(roc_auc_score(labels[test], model.predict_proba(points[test])[:, 1])))
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/scores.json", "w", encoding="utf-8") as file:
                json.dump(scores, file)
            mean = sum(scores) / len(scores)
            tune.report({"auc": mean, "folds": len(scores)}, checkpoint=tune.Checkpoint.from_directory(folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--storage", required=True, help="gs://…, or a folder that all machines share")
    parser.add_argument("--data", default="", help="a folder or bucket with adult.data; default: synthetic data")
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=20)
    given = parser.parse_args()
    work = tune.with_parameters(score, data=given.data, rows=given.rows, folds=given.folds)
    place = os.path.join(given.storage, "census")
    if tune.Tuner.can_restore(place):
        print(f"resuming the search in {place}", flush=True)
        tuner = tune.Tuner.restore(place, trainable=work, resume_errored=True)
    else:
        tuner = tune.Tuner(
            work,
            param_space=SPACE,
            tune_config=tune.TuneConfig(metric="auc", mode="max", num_samples=given.trials),
            run_config=tune.RunConfig(
                name="census",
                storage_path=given.storage,
                # A preempted worker is not a failure of the trial.
                failure_config=tune.FailureConfig(max_failures=-1),
                verbose=1,
            ),
        )
    best = tuner.fit().get_best_result(metric="auc", mode="max")
    print(f"best: auc {best.metrics['auc']:.4f} with {best.config}", flush=True)


if __name__ == "__main__":
    main()
