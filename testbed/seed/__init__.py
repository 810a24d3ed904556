"""Fills a store by a simulated run, through the store's public methods only: ``python -m testbed.seed --help``."""
