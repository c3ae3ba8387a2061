"""Fixtures of this folder; `tests/support/team.py` defines them."""

from tests.support.team import team

__all__ = ["team"]
