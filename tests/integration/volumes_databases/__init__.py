"""Volumes and databases: real servers, real mounts."""
