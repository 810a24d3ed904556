"""Names and patterns that the host protocol and the file layout use."""

from __future__ import annotations

import re
from typing import Any

#: Folder of the lock files that all accounts of a machine share, and the value that disables it.
LOCK_DIR, NO_LOCK_DIR = "/run/lock", "none"
#: End of the names of folders whose removal has begun.
DELETED = ".deleted"
#: Folders of a run whose files are its outputs.
OUTPUT_FOLDERS = ("checkpoints", "work")
#: Label of the containers of a run, whose value is the run's folder. Socket between the supervisor and the container.
CONTAINER_LABEL, CONTAINER_SOCKET = "dtrain.run", "container.sock"
#: File of a run's folder from before its container exists until the runtime has confirmed that it does not any longer.
CONTAINER_RECORD = "container.json"
#: Folders in which the training library writes traces of the profiler, and media.
LIBRARY_FOLDERS = ("work/traces", "work/media")
#: Last member of the outputs archive. It lists what was sent and what was not.
OUTPUTS_END = "end.json"
RUN_NAME = re.compile(r"(?:[0-9a-f]{8}-)?t\d{1,18}\.\d{1,9}\.\d{1,18}", re.ASCII)
CGROUP_NAME = re.compile(rf"dtrain-{RUN_NAME.pattern}-[0-9a-f]{{12}}", re.ASCII)
DIGEST = re.compile(r"[0-9a-f]{64}")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}", re.ASCII)
DEVICE = re.compile(r"[A-Za-z0-9:._/-]{1,128}", re.ASCII)
WORD = re.compile(r"[A-Za-z0-9_.:-]{1,128}", re.ASCII)
MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}", re.ASCII)
RUNG = re.compile(r"0|[1-9]\d{0,5}", re.ASCII)
DECISION = re.compile(r"continue|stop|complete")
CARRIED = re.compile(r"[0-9a-f]{8,64}", re.ASCII)
CHECKPOINT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
STREAM = re.compile(r"supervisor\.events|rank(\d{1,6})\.(events|log)", re.ASCII)
#: Files of measurements, and all files that the ``read`` command accepts. Measurements are sent on request only.
MEASUREMENTS = re.compile(r"samples|rank(\d{1,6})\.timings", re.ASCII)
READABLE = re.compile(rf"{STREAM.pattern}|{MEASUREMENTS.pattern}|rank(\d{{1,6}})\.(samples|clock)", re.ASCII)
KINDS = ("payloads", "libraries", "tools")
#: Variable of the commands of an external job: pid and start time of the process without which nothing of it may run.
JOB_PROCESS = "DTRAIN_JOB_PROCESS"
ROLES = (
    "follow",
    "receive",
    "fetch",
    "outputs",
    "exec",
    "put",
    "request-stops",
    "start",
    "stop",
    "fence",
    "status",
    "collect",
    "match",
    "probe",
    "build",
    "download",
    "supervise",
)
#: Role of a warm parent, which starts like a program of the ranks: without options of the interpreter.
WARM_ROLE = "warm"
ARCHIVE_NAME = re.compile(r"(payloads|libraries|tools|environments|images|downloads|containers)/[0-9a-f]{64}")
#: Most bytes of the text in the lock file of a slot.
MAX_LABEL = 4096
#: Names of processes, of at most 15 bytes.
WARM_NAME = "dtrain-warm"
SUPERVISOR_NAME, REAPER_NAME, SAMPLER_NAME = "dtrain-superv", "dtrain-reaper", "dtrain-sampler"
LINGER_DIR = "/var/lib/systemd/linger"
NETWORK_FILE_SYSTEMS = (
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "afs", "9p", "lustre", "gpfs", "beegfs", "glusterfs", "orangefs",
    "pvfs2", "ocfs2", "gfs2", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse",
)  # fmt: skip
CONTAINER_INTERFACES = re.compile(r"(docker|br-|virbr|cni|flannel|podman|lxcbr|lxdbr|kube-|cali|weave)", re.ASCII)
Json = dict[str, Any]
