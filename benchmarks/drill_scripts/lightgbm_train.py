"""LightGBM: a model saved every 5 rounds, and `init_model=` with the rounds that are left."""

import argparse
import os
import time

import lightgbm as lgb
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
parser.add_argument("--rounds", type=int, default=120)
args = parser.parse_args()

PATH = "checkpoints/model.txt"


def save(env):
    time.sleep(0.1)
    if (env.iteration + 1) % 5 == 0:
        env.model.save_model(PATH + ".tmp")
        os.replace(PATH + ".tmp", PATH)


rng = np.random.default_rng(1)
X = rng.normal(size=(500, 10))
y = (X[:, 0] + 0.5 * rng.normal(size=500) > 0).astype(int)
lgb_train = lgb.Dataset(X[:400], y[:400], free_raw_data=False)
lgb_eval = lgb.Dataset(X[400:], y[400:], reference=lgb_train, free_raw_data=False)
params = {"objective": "binary", "metric": ["binary_logloss", "auc"], "num_leaves": 7, "learning_rate": 0.05}
params |= {"verbose": 0, "num_threads": 1, "deterministic": True, "seed": 3}

os.makedirs("checkpoints", exist_ok=True)
init, done = None, 0
if args.resume and os.path.exists(PATH):
    init = lgb.Booster(model_file=PATH)
    done = init.current_iteration()
print("Starting training...")
gbm = lgb.train(
    params,
    lgb_train,
    num_boost_round=args.rounds - done,
    valid_sets=[lgb_train, lgb_eval],
    init_model=init,
    callbacks=[lgb.log_evaluation(5), save],
)
print("Saving model...")
gbm.save_model("model.txt")
