"""Slurm in words and numbers: options of a pool, jobs, their script, states, reasons and refusals."""
