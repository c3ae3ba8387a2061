"""Simulations of whole worlds from a seed."""
