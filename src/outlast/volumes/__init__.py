"""Shared volumes: create, fill, mount and delete them."""
