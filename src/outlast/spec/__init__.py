"""The specification of runs, clusters, images and sweeps: frozen values and their parsers. No IO."""
