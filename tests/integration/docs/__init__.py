"""The documents: their commands run, their files are valid, and the site is built from them."""
