"""Fixtures of this folder; `tests/support/cluster.py` defines them."""

from tests.support.cluster import bench

__all__ = ["bench"]
