"""The training that `outlast demo` runs: a program that needs nothing but Python."""
