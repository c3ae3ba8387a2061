"""Fixtures of this folder; `tests/support/sync.py` defines them."""

from tests.support.sync import far, home

__all__ = ["far", "home"]
