"""Stand-in for docker: a daemon that runs containers as its own children, without images and namespaces.

Run as a program, it is the daemon. The program ``docker`` that it puts into a folder is its client, which knows the
arguments that this package uses. Files in the folder change what it does: ``hang`` (the client does not answer),
``down`` (the client fails), ``private`` (registry, user and
password that ``pull`` needs), ``slow`` (``run`` waits before it asks the daemon), ``keeps`` (containers do not end).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

CLIENT = f"""#!{sys.executable} -I
import base64, json, os, socket, sys, time
folder = os.path.dirname(os.path.abspath(__file__))
command = sys.argv[1]
with open(os.path.join(folder, "calls"), "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
has = lambda name: os.path.exists(os.path.join(folder, name))
while has("hang") or command == "run" and has("slow"):
    time.sleep(0.02)
if has("down"):
    sys.exit("Cannot connect to the Docker daemon. Is the docker daemon running?")
with socket.socket(socket.AF_UNIX) as connection:
    os.chdir(folder)
    connection.connect("daemon.sock")
    argv = sys.argv[1:]
    if command == "pull" and has("private"):
        # The credentials that the real client sends to the registry.
        with open(os.environ["DOCKER_CONFIG"] + "/config.json") as file:
            ((server, login),) = json.load(file)["auths"].items()
        argv.insert(1, server + " " + base64.b64decode(login["auth"]).decode())
    connection.sendall(json.dumps(argv).encode() + b"\\n")
    with connection.makefile("rb") as file:
        answer = json.loads(file.readline())
sys.stdout.write(answer["output"])
sys.stderr.write(answer["errors"])
sys.exit(answer["status"])
"""


class Daemon:
    """The daemon: container id -> its process and its label."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.images: set[str] = set()
        self.containers: dict[str, tuple[subprocess.Popen[bytes], str]] = {}

    def serve(self) -> None:
        listener = socket.socket(socket.AF_UNIX)
        os.chdir(self.folder)
        listener.bind("daemon.sock")
        listener.listen(64)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file:
            argv = json.loads(file.readline())
            status, output, errors = getattr(self, argv[0])(argv[1:])
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps({"status": status, "output": output, "errors": errors}).encode() + b"\n")

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        name = os.urandom(32).hex()
        options: dict[str, list[str]] = {}
        place = 0
        while argv[place].startswith("--"):
            if argv[place] == "--rm":
                place += 1
                continue
            options.setdefault(argv[place], []).append(argv[place + 1])
            place += 2
        image, *rest = argv[place:]
        if image == "missing":
            return 125, "", "Unable to find image 'missing:latest' locally"
        env = dict(one.split("=", 1) for one in options.get("--env", ()))
        env |= {"PATH": os.environ["PATH"], "OF_IMAGE": "1", "HOME": "/"}
        python = sys.executable if options["--entrypoint"][0].startswith("python") else options["--entrypoint"][0]
        log = os.path.join(self.folder, "container.log")
        with open(log, "ab") as file:
            process = subprocess.Popen(
                [python, *rest], env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=file, stderr=file, process_group=0
            )
        self.containers[name] = (process, options["--label"][0])
        status = process.wait()
        end_all(options["--label"][0])
        while os.path.exists("keeps"):
            time.sleep(0.01)
        self.containers.pop(name, None)
        return status if status >= 0 else 128 - status, "", Path(log).read_text()[-500:] if status else ""

    def version(self, argv: list[str]) -> tuple[int, str, str]:
        return 0, "stand-in", ""

    def pull(self, argv: list[str]) -> tuple[int, str, str]:
        image = argv[-1]
        private = Path("private")
        if private.exists() and argv.pop(0) != private.read_text():
            return 1, "", f"pull access denied for {image}"
        if image == "missing":
            return 1, "", f"manifest for {image} not found: manifest unknown"
        self.images.add(image)
        return 0, image, ""

    def image(self, argv: list[str]) -> tuple[int, str, str]:
        image = argv[-1]
        if image not in self.images:
            return 1, "[]", f"Error: No such image: {image}"
        digest = f"sha256:{hashlib.sha256(image.encode()).hexdigest()}"
        return 0, json.dumps([{"Id": digest, "RepoDigests": [f"{image}@{digest}"]}]), ""

    def ps(self, argv: list[str]) -> tuple[int, str, str]:
        label = argv[argv.index("--filter") + 1].removeprefix("label=")
        return 0, "".join(f"{name}\n" for name, (_, own) in list(self.containers.items()) if own == label), ""

    def rm(self, argv: list[str]) -> tuple[int, str, str]:
        for name in argv[1:]:
            if name in self.containers:
                self.containers[name][0].kill()
            while name in self.containers:
                if os.path.exists("keeps"):
                    return 1, "", "tried to kill container, but did not receive an exit event"
                time.sleep(0.005)
        return 0, "", ""


def end_all(label: str) -> None:
    """Kill the processes of a run that are left, as the kernel does at the end of a pid namespace."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if f"DTRAIN_RUN_DIR={label.partition('=')[2]}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)


@contextlib.contextmanager
def docker(folder: Path, enter: Callable[[list[str]], list[str]] = list) -> Iterator[Path]:
    """Run the daemon, and yield a folder with the program ``docker``, for the front of PATH.

    :param enter: returns the command line that runs another one on the machine of the daemon
    """
    folder.mkdir(parents=True)
    client = folder / "docker"
    client.write_text(CLIENT)
    client.chmod(0o755)
    process = subprocess.Popen(enter([sys.executable, __file__, str(folder)]))
    try:
        deadline = time.monotonic() + 60
        while not (folder / "daemon.sock").exists():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.01)
        yield folder
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    Daemon(sys.argv[1]).serve()
