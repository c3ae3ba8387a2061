"""Flax NNX with Orbax: a `CheckpointManager`, and `latest_step()` at the start."""

import argparse
import os
import time

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from absl import logging
from flax import nnx

parser = argparse.ArgumentParser()
parser.add_argument("--restore", action="store_true")
parser.add_argument("--num_steps", type=int, default=150)
args = parser.parse_args()
logging.set_verbosity(logging.INFO)


class MLP(nnx.Module):
    def __init__(self, rngs):
        self.linear1, self.linear2 = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x):
        return self.linear2(nnx.relu(self.linear1(x)))


model = MLP(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer, x, y):
    loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
    optimizer.update(model, grads)
    return loss


manager = ocp.CheckpointManager(
    os.path.abspath("checkpoints"), options=ocp.CheckpointManagerOptions(max_to_keep=2, save_interval_steps=10)
)
start = 0
if args.restore and manager.latest_step() is not None:
    state = nnx.state((model, optimizer))
    restored = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(state))
    nnx.update((model, optimizer), restored)
    start = manager.latest_step() + 1
for step in range(start, args.num_steps):
    x = jax.random.normal(jax.random.key(step), (32, 8))
    loss = train_step(model, optimizer, x, x[:, :1])
    manager.save(step, args=ocp.args.StandardSave(nnx.state((model, optimizer))))
    time.sleep(0.08)
    if step % 5 == 0:
        logging.info("step: %d, loss: %.4f, steps_per_second: %.2f", step, loss, 1 / 0.08)
manager.wait_until_finished()
