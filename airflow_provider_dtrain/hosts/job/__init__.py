"""Way to the nodes of a Slurm job: one TLS connection to the first node, and a transport per node."""
