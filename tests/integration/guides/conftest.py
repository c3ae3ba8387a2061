"""The same home as for the stories of runs."""

from tests.support.home import home as home
