"""Scripted peer in place of the supervisor: answers and faults that a link must handle.

It is installed and started like the supervisor, so it also tests the installation.
"""

import hashlib
import json
import os
import sys
import tarfile
import time

STARTED = time.monotonic()


def say(document, raw=b""):
    sys.stdout.buffer.write(json.dumps(document).encode() + b"\n" + raw)
    sys.stdout.buffer.flush()


def hello():
    document = {
        "protocol": 1, "machine_id": "m", "boot_id": "b", "pid_ns": 4026531836, "uid": os.getuid(), "python": "3.9.1",
        "executable": sys.executable, "state_dir": "/var/tmp/x", "boottime_s": 12.5, "wall_s": time.time(),
        "hostname": "peer",
    }  # fmt: skip
    sys.stdout.write("DTRAIN/1 " + json.dumps(document) + "\n")
    sys.stdout.flush()


def answer(line):
    command = json.loads(line)
    cmd, key = command["cmd"], command.get("id")
    if cmd == "mute":
        return
    if cmd == "clock":
        say({"re": key, "ok": True, "wall_s": time.time() + 100, "boottime_s": 12.5 + time.monotonic() - STARTED})
    elif cmd == "garbage":
        sys.stdout.write("\x1b[31mTraceback: " + "x" * 500 + "\n")
        sys.stdout.flush()
    elif cmd == "raw":
        sys.stdout.write(command["text"])
        sys.stdout.flush()
    elif cmd == "flood":
        sys.stdout.write("a" * (9 * 1024 * 1024))
        sys.stdout.flush()
    elif cmd == "leave":
        if command.get("deaf_s"):
            os.close(0)
            time.sleep(command["deaf_s"])
        sys.stderr.write("the host lost power\n")
        sys.exit(9)
    elif cmd == "refuse":
        say({"re": key, "ok": False, "code": command["code"], "message": "no \x1b[31m", "slot": 3, "missing": ["abc"]})
    elif cmd == "read":
        say({"re": key, "ok": True, "bytes": 5, "size": 99, "offset": 0}, b"a\nb\nc")
    elif cmd == "stream":
        for number in range(command["count"]):
            raw = b"x" * command["size"]
            say(
                {"t": "data", "run": "t1.1.1", "stream": "rank0.log", "offset": number * len(raw), "bytes": len(raw)},
                raw,
            )
    elif cmd == "frames":
        for frame in command["frames"]:
            raw = frame.pop("raw", "").encode()
            say(dict(frame, bytes=len(raw)) if raw else frame, raw)
        say({"re": key, "ok": True})
    elif key is not None:
        got = {k: v for k, v in command.items() if k != "id"}
        wrong = command.get("wrong", {})
        told = {"boottime_s": 12.5, "results": [], "clear": True}
        say({"re": key, "ok": True, **wrong, "got": got, **told})
    else:
        say({"t": "data", "run": "seen", "stream": cmd, "offset": 0, "bytes": len(line)}, line)


def main():
    role = sys.argv[1]
    if role == "follow":
        hello()
        for line in iter(sys.stdin.buffer.readline, b""):
            answer(line)
        return 0
    if role == "receive":
        kind, digest = sys.argv[4:]
        content = sys.stdin.buffer.read()
        if hashlib.sha256(content).hexdigest() != digest:
            say({"ok": False, "code": "digest", "message": "another digest"})
            return 1
        with open(kind + "-" + digest, "wb") as file:
            file.write(content)
        print("ok")
    elif role == "fetch":
        if not os.path.exists(sys.argv[-1]):
            sys.stderr.write("no such path\n")
            return 1
        with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
            tar.add(sys.argv[-1], arcname="it")
    elif role == "put":
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as tar:
            tar.extractall(sys.argv[-1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
