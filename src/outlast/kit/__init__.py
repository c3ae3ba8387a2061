"""The agent kit: everything that outlast needs on a machine, so that a booting machine needs the workspace alone."""
