"""The trainer library in separate processes."""
