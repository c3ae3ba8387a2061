"""Logistic regression with momentum, in plain Python: classifies points of two noisy clouds.

A batch depends on the step only, and the optimizer's velocity is part of the state. A preempted training therefore ends
with the same weights as an undisturbed one.
"""

import json
import math
import os
import random
import time
from dataclasses import dataclass, field

import outlast

FEATURES = 8


@dataclass
class State:
    step: int = 0
    weights: list = field(default_factory=lambda: [0.0] * (FEATURES + 1))
    velocity: list = field(default_factory=lambda: [0.0] * (FEATURES + 1))


def batch(name, size):
    """Yield points that depend on the name only."""
    dice = random.Random(name)
    for _ in range(size):
        label = dice.random() < 0.5
        yield [dice.gauss(0.4 if label else -0.4, 1.0) for _ in range(FEATURES)] + [1.0], label


def chance(weights, point):
    score = sum(weight * value for weight, value in zip(weights, point, strict=True))
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, score))))


@outlast.trainer(free=("pause",))
def train(run, *, lr: float = 0.1, momentum: float = 0.9, batch_size: int = 32, pause: float = 0.0):
    """Train a small classifier that saves and stops on a preemption notice, and resumes on another machine.

    lr: learning rate
    momentum: fraction of the last step's direction to keep
    batch_size: points per step
    pause: seconds to sleep per step, to leave time for a preemption
    """
    state = State(**(run.restore() or {}))
    loss = 0.0
    for step in run.steps(state.step):
        slopes = [0.0] * (FEATURES + 1)
        loss = 0.0
        for point, label in batch(f"train {step}", batch_size):
            guess = chance(state.weights, point)
            loss -= math.log(max(1e-9, guess if label else 1 - guess)) / batch_size
            slopes = [s + (guess - label) * value / batch_size for s, value in zip(slopes, point, strict=True)]
        state.velocity = [momentum * v - lr * s for v, s in zip(state.velocity, slopes, strict=True)]
        state.weights = [w + v for w, v in zip(state.weights, state.velocity, strict=True)]
        state.step = step + 1
        run.save_if_due(step, lambda: vars(state))
        if state.step % 100 == 0:
            run.log(step, loss=loss)
            print(f"step {state.step}  loss {loss:.3f}", flush=True)
        time.sleep(pause)
    if not run.stopped_early:
        with open(os.path.join(run.outputs, "weights.json"), "w") as file:
            json.dump(state.weights, file)
    return {"loss": loss}


@train.evaluate
def score(run, state, *, batch_size):
    points = [one for step in range(run.eval_steps or 50) for one in batch(f"test {step}", batch_size)]
    hits = sum((chance(state["weights"], point) > 0.5) == label for point, label in points)
    return {"accuracy": hits / len(points), "step": state["step"]}


if __name__ == "__main__":
    train()
