"""CatBoost: `save_snapshot=True`, which it resumes by itself; or no snapshots."""

import argparse

import numpy as np
from catboost import CatBoostClassifier, Pool

parser = argparse.ArgumentParser()
parser.add_argument("--snapshot", action="store_true")
args = parser.parse_args()


rng = np.random.default_rng(1)
X = rng.normal(size=(30_000, 20))
y = (X[:, 0] + 0.5 * rng.normal(size=30_000) > 0).astype(int)
model = CatBoostClassifier(
    iterations=500,
    learning_rate=0.05,
    depth=6,
    random_seed=0,
    thread_count=1,
    save_snapshot=args.snapshot,
    snapshot_file="snapshot.bkp" if args.snapshot else None,
    snapshot_interval=1,
    train_dir="catboost_info",
)
model.fit(Pool(X[:25_000], y[:25_000]), eval_set=Pool(X[25_000:], y[25_000:]), use_best_model=False)
model.save_model("model.cbm")
