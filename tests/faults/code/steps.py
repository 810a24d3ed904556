"""A rank without torch: it counts steps, saves checkpoints, and locks the slot that it uses.

Arguments: last step, seconds per step, steps per checkpoint, then words: ``flood`` floods the log;
``leak`` leaves a process without parent, session, descriptors or environment of the run;
``stays`` lets the first attempt wait before the last step, until it is ended.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import zlib

UNTIL, PAUSE_S, SAVE_EVERY, WORDS = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
RANK, SLOT, RUN = int(os.environ["RANK"]), os.environ["DTRAIN_SLOT"], os.environ["DTRAIN_RUN"]
# On the disk of the host, survives reboots, unknown to the control side.
WITNESS = os.environ.get("FAULTS_WITNESS", "/var/tmp/witness")
# While this file exists, every rank of the host leaves a process as with the word ``leak``.
LEAK = "/var/tmp/leak"
# While this file exists, every rank of the host floods its log as with the word ``flood``.
FLOOD = "/var/tmp/flood"


def witness():
    """Hold a lock per slot of the host, which the kernel refuses to a second gang.

    In a folder that all hosts share, it is a lock per rank of the trial: two of its gangs never run at the same time.
    """
    os.makedirs(WITNESS, exist_ok=True)
    name = f"{RUN.rpartition('.')[0]}-{RANK}" if "FAULTS_WITNESS" in os.environ else SLOT
    fd = os.open(f"{WITNESS}/{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(fd, 4096, 0).decode(errors="replace")
        note("violations", {"run": RUN, "slot": SLOT, "rank": RANK, "held_by": holder, "at": time.time()})
        sys.exit(70)
    os.ftruncate(fd, 0)
    os.pwrite(fd, RUN.encode(), 0)
    os.set_inheritable(fd, True)
    note("journal", {"run": RUN, "slot": SLOT, "rank": RANK, "pid": os.getpid()})
    return fd


def note(name, document):
    line = json.dumps(document) + "\n"
    with open(f"{WITNESS}/{name}", "a") as file:
        file.write(line)


class Events:
    """Writes the events file, which the supervisor streams."""

    def __init__(self):
        self.fd = os.open(os.environ["DTRAIN_EVENTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.seq = 0

    def write(self, kind, **fields):
        self.seq += 1
        body = json.dumps({"seq": self.seq, "at": time.time(), "kind": kind, **fields}).encode()
        view = memoryview(b"%08x %s\n" % (zlib.crc32(body), body))
        while view:
            view = view[os.write(self.fd, view) :]


def latest():
    """Return the step of the checkpoint from which this attempt resumes, 0 without one."""
    path = os.environ.get("DTRAIN_LATEST_CHECKPOINT")
    if path is None:
        return 0
    with open(f"{path}/state.json") as file:
        return int(json.load(file)["step"])


def save(events, step):
    root = os.environ["DTRAIN_CHECKPOINT_DIR"]
    own = root.startswith(os.environ["DTRAIN_RUN_DIR"] + "/")
    name = f"step-{step}" if own else f"{RUN}-step-{step}"
    os.makedirs(f"{root}/.{name}", exist_ok=True)
    with open(f"{root}/.{name}/state.json", "w") as file:
        json.dump({"step": step}, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{root}/.{name}", f"{root}/{name}")
    shown = f"checkpoints/{name}" if own else f"{root}/{name}"
    events.write("checkpoint", step=step, path=shown, size_bytes=20, metrics={"loss": 1.0 / step}, removed=[])


def leak():
    """Leave a fully detached grandchild."""
    code = "import os, time\nif os.fork(): os._exit(0)\nos.closerange(0, 256)\ntime.sleep(600)"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True, env={}).wait()


def say(step):
    """Write three numbered lines. The task log must show each one or mark it as left out."""
    for number in range(3 * step, 3 * step + 3):
        os.write(1, b"NUM %s %d of rank 0 end\n" % (RUN.encode(), number))


def main():
    kept = witness()
    events, step = Events(), latest()
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    events.write("resumed", step=step)
    has_leaked = False
    while step < UNTIL and not stop:
        if not has_leaked and ("leak" in WORDS or os.path.exists(LEAK)):
            has_leaked = True
            leak()
        end = time.monotonic() + PAUSE_S
        flooding = os.path.exists(FLOOD)
        if "flood" in WORDS or flooding:
            while time.monotonic() < end:
                os.write(1, b"x" * 120 * 500 + b"\n")
                if flooding:
                    time.sleep(0.003)  # 20 MB/s: the small disk of a host takes this until its log is trimmed.
        else:
            time.sleep(PAUSE_S)
        if step == UNTIL - 1 and "stays" in WORDS and RUN.split(".")[1] == "1":
            continue
        step += 1
        if RANK == 0:
            say(step)
        events.write("report", step=step, metrics={"loss": 1.0 / step})
        if RANK == 0 and step % SAVE_EVERY == 0:
            save(events, step)
    if stop and step < UNTIL:
        sys.exit(143)
    if RANK == 0:
        events.write("result", value={"step": step})
    os.fsync(kept)


main()
