"""The pattern of PyTorch's tutorial for torchrun: a snapshot in the working folder, loaded if it exists.

Arguments: number of epochs, the epoch before which the first attempt ends (-1: none), how it ends, and further words.
"""

import glob
import os
import signal
import sys
import time

SNAPSHOT = "snapshot.pt"
epochs, fail_at, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
words = sys.argv[4:]
rank, run = int(os.environ["RANK"]), os.environ["DTRAIN_RUN_DIR"]
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1


def read(path):
    with open(path) as file:
        return file.read()


start = int(read(SNAPSHOT).split()[0]) if os.path.exists(SNAPSHOT) else 0
seen = os.path.join(os.environ["DTRAIN_CHECKPOINT_DIR"], "seen.txt")
print(f"rank {rank} resumes at {start}, seen {read(seen).split() if os.path.exists(seen) else []}", flush=True)
if "joins" in words:
    from pathlib import Path

    from airflow_provider_dtrain.train.reports.events import EventWriter

    events = EventWriter(Path(os.environ["DTRAIN_EVENTS"]))
    events.write("init", {})


def barrier(name):
    """Wait until every rank of this host has arrived, as in a collective."""
    open(f"{run}/{name}-{rank}", "w").close()
    while len(glob.glob(f"{run}/{name}-*")) < int(os.environ["LOCAL_WORLD_SIZE"]):
        time.sleep(0.02)


# Each rank has read the snapshot before rank 0 writes it.
barrier("ready")
for epoch in range(start, epochs):
    if epoch == fail_at and attempt == 1:
        # Rank 0 has written every epoch before this one.
        barrier("fails")
        if "wait" in words:
            # Until the test lets it continue.
            while not os.path.exists(os.path.expanduser("~/go-on")):
                time.sleep(0.05)
        if how == "raise":
            raise ValueError(f"rank {rank} fails in epoch {epoch}")
        if how == "kill":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
    if rank == 0:
        # As torch.save does: in place, not under another name.
        with open(SNAPSHOT, "w") as file:
            file.write(f"{epoch + 1} " + "x" * 1000)
        with open(seen, "a") as file:
            file.write(f"{attempt}:{epoch}\n")
        os.makedirs("plots", exist_ok=True)
        with open(f"plots/{epoch}.txt", "w") as file:
            file.write(str(epoch))
        if "joins" in words:
            events.write("report", {"step": epoch, "metrics": {"loss": 0.5}})
        if "link" in words and not os.path.lexists("latest"):
            os.symlink("/etc/passwd", "latest")
        if "edit" in words:
            with open("edited.py", "a") as file:
                file.write(f"# epoch {epoch}\n")
print(f"rank {rank} done", flush=True)
