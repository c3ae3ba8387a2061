"""Fixtures of this folder; `tests/support/images.py` defines them."""

from tests.support.images import home, rooted, shop

__all__ = ["home", "rooted", "shop"]
