"""Fixtures of this folder; `tests/support/frameworks.py` defines them."""

from tests.support.frameworks import disturbed, undisturbed

__all__ = ["disturbed", "undisturbed"]
