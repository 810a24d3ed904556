"""Environments of ranks: built once from the packages of a lock file, then read-only."""
