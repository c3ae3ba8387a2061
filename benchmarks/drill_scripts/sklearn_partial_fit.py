"""scikit-learn: `SGDClassifier.partial_fit` over chunks, with joblib after every fifth chunk."""

import argparse
import os
import time

import joblib
import numpy as np
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
args = parser.parse_args()
os.makedirs("checkpoints", exist_ok=True)
PATH = "checkpoints/clf.joblib"
if args.resume and os.path.exists(PATH):
    clf, first = joblib.load(PATH)
else:
    clf, first = SGDClassifier(loss="log_loss", random_state=0, learning_rate="constant", eta0=0.001), 0
rng = np.random.default_rng(0)
X_test = rng.normal(size=(200, 20))
y_test = X_test[:, 0] > 0
for chunk in range(first, 120):
    rng = np.random.default_rng(chunk)
    X = rng.normal(size=(50, 20))
    clf.partial_fit(X, X[:, 0] > 0, classes=[False, True])
    time.sleep(0.12)
    if (chunk + 1) % 5 == 0:
        print(f"chunk {chunk + 1}: log loss {log_loss(y_test, clf.predict_proba(X_test)):.4f}")
        joblib.dump((clf, chunk + 1), PATH)
print(f"accuracy {clf.score(X_test, y_test):.3f}")
