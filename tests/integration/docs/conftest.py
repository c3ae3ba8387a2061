"""Fixtures of this folder; they are those of the end-to-end tests."""

from tests.support.home import home as home
from tests.support.team import team as team
