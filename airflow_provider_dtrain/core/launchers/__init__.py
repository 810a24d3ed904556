"""Programs that start the ranks of a host themselves."""
