"""Sweeps: many trials of one program, told in a story of their own; samplers and pruners are Optuna's."""
