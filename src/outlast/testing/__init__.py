"""The simulation, and the conformance suites for implementations of the protocols."""
