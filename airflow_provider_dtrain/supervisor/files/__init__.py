"""Files of runs: their folders, events, measurements, archives and outputs."""
