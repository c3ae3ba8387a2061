"""Trains a small neural network to separate two spirals, in plain Python and without outlast: it writes its state to a
folder after each epoch, resumes from it, and on SIGTERM saves and exits."""

import json
import math
import os
import random
import signal
import sys
import time

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
FOLDER = os.environ.get("OUTLAST_CHECKPOINT_DIR", "checkpoints")
STATE = os.path.join(FOLDER, "state.json")
HIDDEN = 12
# An epoch takes at least this long, so that a fast computer leaves time to watch.
EPOCH_S = 0.4


def spirals(count):
    """Return points of two spirals, each with the number of its spiral."""
    rng = random.Random(7)
    points = []
    for i in range(count):
        angle = 3.6 * math.pi * (i // 2) / (count / 2)
        radius = 0.2 + angle / 10
        turn = angle + math.pi * (i % 2)
        points.append(
            (radius * math.cos(turn) + rng.gauss(0, 0.03), radius * math.sin(turn) + rng.gauss(0, 0.03), i % 2)
        )
    return points


def fresh():
    rng = random.Random(3)
    weights = lambda rows, columns: [[rng.gauss(0, 0.9) for _ in range(columns)] for _ in range(rows)]
    return {
        "epoch": 0,
        "first": weights(HIDDEN, 3),
        "second": weights(HIDDEN, HIDDEN + 1),
        "last": weights(1, HIDDEN + 1),
    }


def forward(state, x, y):
    one = [math.tanh(w[0] * x + w[1] * y + w[2]) for w in state["first"]]
    two = [math.tanh(sum(a * b for a, b in zip(w, one)) + w[-1]) for w in state["second"]]
    out = sum(a * b for a, b in zip(state["last"][0], two)) + state["last"][0][-1]
    return one, two, 1 / (1 + math.exp(-max(-30.0, min(30.0, out))))


def epoch(state, points, rate):
    """Train on all points once, in an order that depends on the epoch only. Returns the mean loss and the accuracy."""
    order = list(range(len(points)))
    random.Random(state["epoch"]).shuffle(order)
    loss = hits = 0.0
    for i in order:
        x, y, label = points[i]
        one, two, guess = forward(state, x, y)
        loss -= math.log(max(1e-9, guess if label else 1 - guess))
        hits += (guess > 0.5) == bool(label)
        slope = guess - label
        last = state["last"][0]
        back_two = [slope * last[j] * (1 - two[j] ** 2) for j in range(HIDDEN)]
        back_one = [
            sum(back_two[j] * state["second"][j][k] for j in range(HIDDEN)) * (1 - one[k] ** 2) for k in range(HIDDEN)
        ]
        for j in range(HIDDEN):
            last[j] -= rate * slope * two[j]
            row, step = state["second"][j], rate * back_two[j]
            for k in range(HIDDEN):
                row[k] -= step * one[k]
            row[-1] -= step
            row, step = state["first"][j], rate * back_one[j]
            row[0] -= step * x
            row[1] -= step * y
            row[2] -= step
        last[-1] -= rate * slope
    return loss / len(points), hits / len(points)


def save(state):
    with open(STATE + ".tmp", "w") as file:
        json.dump(state, file)
    os.replace(STATE + ".tmp", STATE)


def picture(state, columns=48, rows=15):
    """Return the plane as the network separates it: one character per spiral."""
    span = lambda i, count: 3 * i / (count - 1) - 1.5
    sign = lambda row, column: ".#"[forward(state, span(column, columns), -span(row, rows))[2] > 0.5]
    return "\n".join("  " + "".join(sign(row, column) for column in range(columns)) for row in range(rows))


def main():
    os.makedirs(FOLDER, exist_ok=True)
    points = spirals(500)
    state = json.load(open(STATE)) if os.path.exists(STATE) else fresh()
    terminated = []
    signal.signal(signal.SIGTERM, lambda *_: terminated.append(True))
    loss, hits = 0.0, 0.0
    while state["epoch"] < EPOCHS:
        began = time.monotonic()
        for _ in range(3):
            loss, hits = epoch(state, points, 0.008)
        state["epoch"] += 1
        save(state)
        print(f"epoch {state['epoch']:3d}/{EPOCHS}  loss {loss:.3f}  accuracy {hits:4.0%}", flush=True)
        if terminated:
            print("SIGTERM: saved, exiting", flush=True)
            sys.exit(0)
        time.sleep(max(0.0, began + EPOCH_S - time.monotonic()))
    print("the two spirals, as the network separates them:\n" + picture(state), flush=True)
    with open(os.path.join(os.environ.get("OUTLAST_OUTPUT_DIR", "."), "result.json"), "w") as file:
        json.dump({"epochs": state["epoch"], "loss": loss, "accuracy": hits}, file)


main()
