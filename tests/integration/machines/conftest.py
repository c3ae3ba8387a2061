"""Fixtures of this folder; `tests/support/machines.py` defines them."""

from tests.support.machines import bench, door, home

__all__ = ["bench", "door", "home"]
