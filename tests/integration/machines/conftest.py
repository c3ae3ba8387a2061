"""Fixtures of this folder; `tests/support/machines.py` defines them."""

from tests.support.machines import bench, home, ssh_server

__all__ = ["bench", "home", "ssh_server"]
