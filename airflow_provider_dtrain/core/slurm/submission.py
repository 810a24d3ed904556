"""Submission of a job: the arguments of ``sbatch``, and the script that it reads on standard input."""

from __future__ import annotations

import hashlib
import re
import shlex
from dataclasses import dataclass
from typing import Final

from airflow_provider_dtrain.core.slurm.hostlist import compress
from airflow_provider_dtrain.core.slurm.node_shape import NodeShape
from airflow_provider_dtrain.core.slurm.options import SlurmOptions
from airflow_provider_dtrain.core.slurm.quantities import mebibytes_of, slurm_time
from airflow_provider_dtrain.core.slurm.user_options import arguments

#: Names of jobs: ``squeue --name`` takes a list with commas, and hostile characters must not reach a shell's history.
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}", re.ASCII)
#: Maximum bytes of a script: ``max_script_size`` of the controller is 4 MiB unless a site sets it.
MAX_SCRIPT_BYTES: Final = 4 << 20
#: Bytes of standard error that the comment of a job can carry: Slurm limits a comment to 1024 characters.
_REPORT_BYTES: Final = 690
#: Bytes of standard error that the script keeps.
_KEPT_BYTES: Final = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """One job that is to be submitted."""

    #: Unique name of the attempt: ``dtrain-<store>-<run>``.
    name: str
    shape: NodeShape
    #: Time limit, from :func:`.time_limit_of`.
    time_limit_s: int
    #: How long before its end the job is warned, from :func:`.warning_lead_s`.
    warning_s: int
    #: Nodes that the job must not get.
    excluded_nodes: tuple[str, ...] = ()
    #: Python program that the supervisors' interpreter gets as ``-c``. It reads standard input.
    loader: str
    #: Text that every task of the step gets on standard input: program and secret parameters.
    stdin: str

    def __post_init__(self) -> None:
        """Check the name.

        :raises ValueError: the name cannot be searched for
        """
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not the name of a job: letters, digits, '_', '.' and '-' are accepted")


def sbatch_arguments(options: SlurmOptions, request: JobRequest) -> list[str]:
    """Return the arguments of ``sbatch``, without the program. The script follows on standard input."""
    shape = request.shape
    cpus = cpus_per_task(options, shape)
    found: list[tuple[str, str | None]] = [
        ("parsable", None),
        ("no-requeue", None),
        ("job-name", request.name),
        ("dependency", "singleton"),
        ("partition", options.partition),
        ("account", options.account),
        ("qos", options.qos),
        ("clusters", options.clusters),
        ("nodes", str(shape.nodes)),
        ("ntasks", str(shape.nodes)),
        ("ntasks-per-node", "1"),
        ("cpus-per-task", None if cpus is None else str(cpus)),
        *_resources(options, shape),
        ("time", slurm_time(request.time_limit_s)),
        ("time-min", None if options.time_min_s is None else slurm_time(min(options.time_min_s, request.time_limit_s))),
        ("exclude", compress(list(request.excluded_nodes)) or None),
        ("signal", f"URG@{request.warning_s}"),
        ("output", options.output or "/dev/null"),
    ]
    return [
        *(f"--{name}" if value is None else f"--{name}={value}" for name, value in found
          if options.has(name) and (value is not None or name in _FLAGS)),
        *arguments(options.sbatch_options),
    ]  # fmt: skip


_FLAGS: Final = frozenset(["parsable", "no-requeue"])


def cpus_per_task(options: SlurmOptions, shape: NodeShape) -> int | None:
    """Return the CPUs of a supervisor and its ranks on one node, None for the default of the cluster."""
    slots = max(1, shape.slots_per_node)
    if options.cpus_per_slot is not None:
        return slots * options.cpus_per_slot
    return slots if options.slots == "cpu" else None


def _resources(options: SlurmOptions, shape: NodeShape) -> list[tuple[str, str | None]]:
    """Return GPUs or generic resources and memory of a node."""
    found: list[tuple[str, str | None]] = []
    kind = f"{options.gres_type}:" if options.gres_type else ""
    if options.slots == "gpu" and shape.slots_per_node:
        if options.gres_name is None:
            found.append(("gpus-per-node", f"{kind}{shape.slots_per_node}"))
        else:
            found.append(("gres", f"{options.gres_name}:{kind}{shape.slots_per_node}"))
    if options.memory_per_slot is not None:
        memory = mebibytes_of(options.memory_per_slot) or 0
        found.append(("mem", f"{memory * max(1, shape.slots_per_node)}M"))
    if options.memory_per_cpu is not None:
        found.append(("mem-per-cpu", f"{mebibytes_of(options.memory_per_cpu)}M"))
    return found


def srun_arguments(options: SlurmOptions, request: JobRequest) -> list[str]:
    """Return the arguments of the step that runs the supervisors, without ``srun`` and their command."""
    nodes, cpus = request.shape.nodes, cpus_per_task(options, request.shape)
    found: list[tuple[str, str | None]] = [
        ("job-name", "dtrain"),
        ("nodes", str(nodes)),
        ("ntasks", str(nodes)),
        ("ntasks-per-node", "1"),
        ("kill-on-bad-exit", "0"),
        ("wait", "0"),
        ("cpus-per-task", None if cpus is None else str(cpus)),
        ("cpu-bind", "none"),
        ("mem", "0"),
        ("mpi", "none"),
        ("input", "all"),
        ("export", "ALL"),
    ]
    return [f"--{name}={value}" for name, value in found if value is not None and options.has(f"srun:{name}")]


def batch_script(options: SlurmOptions, request: JobRequest) -> str:
    """Return the script of a job.

    A login shell runs the setup lines, each of which must succeed, and then one ``srun`` of the supervisors. Standard
    error of both is kept, at most its last 64 KiB, in a file without a name. After a failure, its end and the exit code
    become the comment of the job, which the controller keeps after the job: no shared file system is needed.

    :raises ValueError: the script is larger than the controller accepts, or has a NUL character
    """
    step = shlex.join([*srun_arguments(options, request), options.python, "-c", request.loader])
    text = _SCRIPT.format(
        kept=_KEPT_BYTES,
        report=_REPORT.format(reported=_REPORT_BYTES) if options.has("comment") else ":",
        setup=_whole_lines(options.setup),
        setup_end=_terminator(options.setup),
        step=step,
        stdin=_whole_lines(request.stdin),
        stdin_end=_terminator(request.stdin),
    )
    if "\x00" in text or "\r" in text:
        raise ValueError("the script of a job has a NUL character or a carriage return, which sbatch refuses")
    if (size := len(text.encode())) > MAX_SCRIPT_BYTES:
        raise ValueError(f"the script of a job has {size} bytes, and a controller accepts {MAX_SCRIPT_BYTES}")
    return text


def _terminator(text: str) -> str:
    """Return a line that a text does not have."""
    return f"END_{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _whole_lines(text: str) -> str:
    return f"{text}\n" if text and not text.endswith("\n") else text


#: The shell expands nothing of the user's: options are quoted, and setup lines and input end with lines of their own.
_SCRIPT: Final = r"""#!/bin/bash -l
# Job of a gang, written by airflow-provider-dtrain.
# Setup lines such as "module purge" may take programs out of PATH.
dtrain_path=$PATH
dtrain_srun=$(command -v srun) || dtrain_srun=srun
dtrain_own() {{
  PATH=$dtrain_path command "$@"
}}
dtrain_report() {{
  {report}
}}
# It runs in a subshell, which ends with it: a shell prints a command that a signal has killed, with its input.
dtrain_step() {{
  exec "$dtrain_srun" {step} <<'{stdin_end}'
{stdin}{stdin_end}
}}
dtrain_setup_ended() {{
  dtrain_code=$?
  set +eux
  exec 1>&7 2>&7
  if [ "$dtrain_code" -eq 0 ]; then
    dtrain_code=1
    echo "The setup lines called exit." >&8
  fi
  [ -z "$dtrain_line" ] || echo "Line $dtrain_line of the setup lines failed." >&8
  dtrain_text=$(dtrain_own tail -c {kept} <&9)
  printf '%s\n' "$dtrain_text" >&2
  dtrain_report setup "$dtrain_code" "$dtrain_text"
  exit "$dtrain_code"
}}
exec 7>&2
if dtrain_file=$(mktemp); then
  exec 8>"$dtrain_file" 9<"$dtrain_file"
  rm -f "$dtrain_file"
else
  exec 8>&2 9</dev/null
fi
dtrain_line=
trap dtrain_setup_ended EXIT
trap 'dtrain_line=$LINENO' ERR
exec 1>&8 2>&8
set -e
source /dev/fd/6 6<<'{setup_end}'
{setup}{setup_end}
set +eux
trap - EXIT ERR
exec 1>&7 2>&7 8>&- 9<&-
dtrain_text=$(
  dtrain_step 2>&1 </dev/null | dtrain_own tee /dev/fd/7 | dtrain_own tail -c {kept}
  exit "${{PIPESTATUS[0]}}"
)
dtrain_code=$?
[ "$dtrain_code" -eq 0 ] || dtrain_report srun "$dtrain_code" "$dtrain_text"
exit "$dtrain_code"
"""
_REPORT: Final = r"""dtrain_end=$(printf '%s' "$3" | dtrain_own tail -c {reported} | dtrain_own base64 -w 0)
  dtrain_own scontrol update "jobid=$SLURM_JOB_ID" "comment=dtrain-$1:$2:$dtrain_end" >&2"""
