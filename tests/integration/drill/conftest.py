"""The same home as the tests that run whole commands have."""

from tests.e2e.conftest import home as home
