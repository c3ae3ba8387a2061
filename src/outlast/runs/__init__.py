"""Runs in a workspace: events, state, checkpoints, logs, metrics, outputs."""
