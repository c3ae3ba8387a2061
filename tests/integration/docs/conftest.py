"""The same home as for the stories of runs."""

from tests.e2e.conftest import home as home
