"""Channel of a job: one process per node of a Slurm job, which executes the commands of followers.

The modules are sent over standard input and are never installed. They import nothing else of the supervisor.
"""
