"""Slurm's commands on a login node."""
