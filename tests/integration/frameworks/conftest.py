"""Fixtures of this folder; `tests/support/frameworks.py` defines them."""

from tests.support.frameworks import disturbed, undisturbed
from tests.support.home import home

__all__ = ["disturbed", "home", "undisturbed"]
