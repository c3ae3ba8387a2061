"""Observe, plan, apply: the loop that keeps runs alive."""
