"""Fixtures of this folder."""

from tests.integration.executor.team import here
from tests.support.home import home

__all__ = ["here", "home"]
