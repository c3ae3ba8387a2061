"""The same story, dying at point 0, 1, 2 … n."""
