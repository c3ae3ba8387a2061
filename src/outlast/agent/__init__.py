"""On the machine: carries out one attempt of a run."""
