"""The supervisor of a run: start, watch and end of its ranks, locks of its slots, and the fence."""
