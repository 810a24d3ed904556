"""Batch inference: shards of an input, processed by the ranks of a gang and written exactly once."""
