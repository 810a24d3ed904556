"""Images of containers on this host: their download, and removal of those that no launch uses."""
