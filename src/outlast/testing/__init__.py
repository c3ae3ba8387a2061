"""Shipped for tests: conformance suites that every implementation of a protocol must pass."""
