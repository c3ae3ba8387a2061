"""Sweeps: hyperparameter search over trials of one program, with samplers and pruners of Optuna."""
