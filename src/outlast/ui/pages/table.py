"""The pages there are: a line each. The key is what is typed after `g` to go there; without one it is in no menu."""

from __future__ import annotations

from outlast.ui.frame import Page
from outlast.ui.pages import overview, run

PAGES: tuple[Page, ...] = (
    Page("/", "Overview", "o", overview.build),
    Page("/run/{name}", "Run", "", run.build),
)
