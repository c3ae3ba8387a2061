"""Fixtures of this folder; `tests/support/local.py` defines them."""

from tests.support.local import ask, cloud, fleet, mode, plain_cloud, plain_fleet

__all__ = ["ask", "cloud", "fleet", "mode", "plain_cloud", "plain_fleet"]
