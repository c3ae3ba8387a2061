"""Stable-Baselines3: PPO with a `CheckpointCallback`; `PPO.load` and `reset_num_timesteps=False`."""

import argparse
import glob
import time

import gymnasium as gym
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback

parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
parser.add_argument("--total-timesteps", type=int, default=6000)
args = parser.parse_args()


class Slow(BaseCallback):
    def _on_step(self):
        time.sleep(0.002)
        return True


env = gym.make("CartPole-v1")
saved = glob.glob("checkpoints/rl_model_*_steps.zip")
if args.resume and saved:
    newest = max(saved, key=lambda path: int(path.split("_")[-2]))
    model = PPO.load(newest, env=env, device="cpu")
else:
    model = PPO("MlpPolicy", env, n_steps=256, batch_size=64, n_epochs=4, verbose=1, seed=1, device="cpu")
checkpoint_callback = CheckpointCallback(save_freq=500, save_path="./checkpoints/")
model.learn(
    args.total_timesteps - model.num_timesteps,
    callback=[checkpoint_callback, Slow()],
    reset_num_timesteps=model.num_timesteps == 0,
)
model.save("ppo_cartpole")
