"""The documents: what they say is tried, and the site is built from them."""
