"""Fixtures of this folder; `console.py` defines them."""

from tests.integration.cli.console import console

__all__ = ["console"]
