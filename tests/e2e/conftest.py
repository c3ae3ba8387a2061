"""Fixtures of this folder; `tests/support/home.py` defines them."""

from tests.support.home import home

__all__ = ["home"]
