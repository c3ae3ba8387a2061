"""What the command line and the page share: rows, words, clouds by name, and the things that a user may do."""
