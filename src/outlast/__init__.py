"""outlast: machine-learning experiments that outlast their machines."""

__version__ = "0.1.0"
