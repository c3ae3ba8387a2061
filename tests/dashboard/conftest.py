"""Fixtures of this folder; `tests/support/dashboard.py` defines them."""

from tests.support.dashboard import browser, empty, lived, serve, served, visit, visits

__all__ = ["browser", "empty", "lived", "serve", "served", "visit", "visits"]
