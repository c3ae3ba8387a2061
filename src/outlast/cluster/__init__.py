"""Clusters: Ray on our machines. Ray itself is imported only by what runs on a machine of a cluster."""
