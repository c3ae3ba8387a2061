"""Shared databases: create, open for users, check, back up and delete them."""
