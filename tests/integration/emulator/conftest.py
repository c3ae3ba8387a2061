"""Fixtures of this folder; `tests/support/emulator.py` defines them."""

from tests.support.emulator import call, endpoint, served, watching

__all__ = ["call", "endpoint", "served", "watching"]
