"""Fixtures of this folder; `tests/support/agent.py` defines them."""

from tests.support.agent import checkpointer, store

__all__ = ["checkpointer", "store"]
