"""Checkpoints of a running command: scan its files, decide when they are complete, commit them."""
