"""One small file a framework. Each imports its framework when it is imported itself, and none imports another."""
