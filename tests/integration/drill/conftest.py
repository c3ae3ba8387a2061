"""Fixtures of this folder."""

from tests.support.home import home as home
