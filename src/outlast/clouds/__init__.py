"""The clouds: one protocol, one registry, one package per cloud."""
