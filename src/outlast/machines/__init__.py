"""Work by hand: machines that people make, log in to, keep alive and throw away. Refuses to know of runs."""
