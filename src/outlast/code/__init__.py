"""The code of a run: source files, bundles, git, and outlast itself as a wheel."""
