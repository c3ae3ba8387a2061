"""Whole worlds from a seed."""
