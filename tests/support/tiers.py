"""Parameters of tests by tier."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_in_quick(values: Iterable[Any]) -> list[Any]:
    """Return the values for `parametrize`: the first for every tier, the others, which repeat it, for the full one."""
    first, *others = values
    return [first, *(pytest.param(value, marks=pytest.mark.full) for value in others)]
