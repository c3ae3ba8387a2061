"""Fixtures of this folder; `tests/support/code.py` defines them."""

from tests.support.code import _no_settings_of_this_computer, bucket, git

__all__ = ["_no_settings_of_this_computer", "bucket", "git"]
