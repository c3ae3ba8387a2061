"""The same home as the tests that run whole commands have."""

from tests.support.home import home as home
