"""Modules that many commands use: options, project file, terminal output, progress."""
