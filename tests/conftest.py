"""The order of the whole suite: what takes long comes first, in random order, and the many short ones fill the gaps."""

from __future__ import annotations

import pytest

# Folders by how long their files take; the rest takes seconds.
LONG = (
    "cluster",
    "examples",
    "mixed",
    "aws",
    "images",
    "web",
    "gcp",
    "docs",
    "e2e",
    "serve",
    "machines",
    "guides",
    "drill",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """After the shuffle. A long file that is handed out last keeps one process busy while the others have nothing."""
    ranks = {name: rank for rank, name in enumerate(LONG)}
    items.sort(key=lambda item: ranks.get(item.path.parent.name, len(ranks)))
