"""Rows of benchmarks: what they measure, in which order, on which machine, and how they are printed."""
