"""A script without any use of outlast: fits a curve, writes checkpoints, and resumes from them."""

import argparse
import json
import os
import time

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=200)
parser.add_argument("--pause", type=float, default=0.05, help="seconds to wait per epoch")
options = parser.parse_args()

CHECKPOINT = "checkpoints/state.json"
POINTS = [(x / 20, 2 * (x / 20) ** 2 - x / 20 + 0.5) for x in range(-20, 21)]

state = {"epoch": 0, "a": 0.0, "b": 0.0, "c": 0.0}
if os.path.exists(CHECKPOINT):
    with open(CHECKPOINT) as file:
        state = json.load(file)
    print("resumed at epoch", state["epoch"], flush=True)

error = 0.0
while state["epoch"] < options.epochs:
    error = 0.0
    for x, y in POINTS:
        wrong = state["a"] * x * x + state["b"] * x + state["c"] - y
        error += wrong * wrong / len(POINTS)
        state["a"] -= 0.05 * wrong * x * x
        state["b"] -= 0.05 * wrong * x
        state["c"] -= 0.05 * wrong
    state["epoch"] += 1
    time.sleep(options.pause)
    if state["epoch"] % 10 == 0 or state["epoch"] == options.epochs:
        # Write under a temporary name, then rename: a reader never sees a partial file.
        os.makedirs("checkpoints", exist_ok=True)
        with open(CHECKPOINT + ".tmp", "w") as file:
            json.dump(state, file)
        os.replace(CHECKPOINT + ".tmp", CHECKPOINT)
        print(f"epoch {state['epoch']}  error {error:.6f}", flush=True)

os.makedirs("outputs", exist_ok=True)
with open("outputs/curve.json", "w") as file:
    json.dump(state, file)
