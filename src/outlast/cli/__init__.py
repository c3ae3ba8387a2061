"""The command line: one package per noun, one module per command or per group of similar commands."""
