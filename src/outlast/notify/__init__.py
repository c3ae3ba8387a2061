"""Notifications about runs: which events become messages, where they go, and how each is sent once."""
