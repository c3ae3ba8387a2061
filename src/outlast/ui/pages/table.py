"""The pages there are: a line each. The key is what is typed after `g` to go there; without one it is in no menu."""

from __future__ import annotations

from outlast.ui.layout import PageInfo
from outlast.ui.pages import clusters, cost, drills, images, overview, run, stores, sweep, sweeps

PAGES: tuple[PageInfo, ...] = (
    PageInfo("/", "Overview", "o", overview.build),
    PageInfo("/run/{name}", "Run", "", run.build),
    PageInfo("/sweeps", "Sweeps", "s", sweeps.build),
    PageInfo("/sweeps/{name}", "Sweep", "", sweep.build),
    PageInfo("/clusters", "Clusters", "c", clusters.build),
    PageInfo("/clusters/{name}", "Cluster", "", clusters.build_one),
    PageInfo("/images", "Images", "i", images.build),
    PageInfo("/images/{cloud}/{name}", "Image", "", images.build_one),
    PageInfo("/stores", "Volumes and databases", "v", stores.build),
    PageInfo("/cost", "Cost", "m", cost.build),
    PageInfo("/drills", "Drills", "d", drills.build),
    PageInfo("/drills/{run}", "Drill", "", drills.build_one),
)
