"""XGBoost: `TrainingCheckPoint`, and `xgb_model=` with the rounds that are left; it counts from [0] again."""

import argparse
import glob
import os
import time

import numpy as np
import xgboost as xgb

parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
parser.add_argument("--rounds", type=int, default=120)
args = parser.parse_args()


class Slow(xgb.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        time.sleep(0.1)
        return False


rng = np.random.default_rng(1994)
X = rng.normal(size=(500, 10))
y = (X[:, 0] + 0.5 * rng.normal(size=500) > 0).astype(int)
dtrain, dtest = xgb.DMatrix(X[:400], label=y[:400]), xgb.DMatrix(X[400:], label=y[400:])
params = {"objective": "binary:logistic", "max_depth": 2, "eta": 0.05, "seed": 0, "nthread": 1}

os.makedirs("checkpoints", exist_ok=True)
booster, done = None, 0
saved = sorted(glob.glob("checkpoints/model_*.ubj"), key=os.path.getmtime)
if args.resume and saved:
    booster = xgb.Booster(params, model_file=saved[-1])
    done = booster.num_boosted_rounds()
bst = xgb.train(
    params,
    dtrain,
    num_boost_round=args.rounds - done,
    evals=[(dtrain, "train"), (dtest, "eval")],
    xgb_model=booster,
    callbacks=[xgb.callback.TrainingCheckPoint("checkpoints", interval=5), Slow()],
)
bst.save_model("model.json")
