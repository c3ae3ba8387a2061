"""Files, terminals and ports between this computer and a machine that may come back elsewhere."""
