"""Fixtures of this folder; `tests/support/agent.py` defines them."""

from tests.support.agent import saver, store

__all__ = ["saver", "store"]
