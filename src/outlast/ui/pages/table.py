"""The pages there are: a line each. The key is what is typed after `g` to go there; without one it is in no menu."""

from __future__ import annotations

from outlast.ui.frame import Page
from outlast.ui.pages import clusters, cost, drills, images, overview, run, stores, sweep, sweeps

PAGES: tuple[Page, ...] = (
    Page("/", "Overview", "o", overview.build),
    Page("/run/{name}", "Run", "", run.build),
    Page("/sweeps", "Sweeps", "s", sweeps.build),
    Page("/sweeps/{name}", "Sweep", "", sweep.build),
    Page("/clusters", "Clusters", "c", clusters.build),
    Page("/clusters/{name}", "Cluster", "", clusters.build_one),
    Page("/images", "Images", "i", images.build),
    Page("/images/{cloud}/{name}", "Image", "", images.build_one),
    Page("/stores", "Volumes and databases", "v", stores.build),
    Page("/cost", "Cost", "m", cost.build),
    Page("/drills", "Drills", "d", drills.build),
    Page("/drills/{run}", "Drill", "", drills.build_one),
)
