"""Ray clusters on our machines. Only modules that run on a cluster's machines import Ray."""
