"""Commands for images."""
