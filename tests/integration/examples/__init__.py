"""Tests that run the examples as their readers do."""
