"""Facts of this host, and checks before a run is placed on it."""
