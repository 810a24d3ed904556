"""Slurm clusters on one machine: munged, slurmctld and several slurmd in one folder, nothing in /etc.

As a fixture: ``pytest_plugins = ["testbed.slurm.plugin"]``. In a script: ``with SlurmCluster(nodes=4) as cluster``. By
hand: ``scripts/slurm-testbed start``.
"""

from __future__ import annotations

from testbed.slurm.cluster import SlurmCluster
from testbed.slurm.programs import missing

__all__ = ["SlurmCluster", "missing"]
