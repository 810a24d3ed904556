"""Ranks that are forked from a warm parent, beside ranks of the same program that are executed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.support.supervisor_host import Channel, Host, make_plan, start

#: Prints everything that a program can see of how it was started.
STATE = r"""
import ctypes, gc, json, locale, os, resource, signal, sys, threading, warnings
def shown(stream):
    names = ("name", "mode", "encoding", "errors", "line_buffering", "write_through")
    return [getattr(stream, name, None) for name in names] + [type(stream.buffer).__name__, stream.isatty()]
def handler(number):
    found = signal.getsignal(number)
    return getattr(found, "__name__", str(found))
def status(*names):
    lines = open("/proc/self/status").read().splitlines()
    return [line for line in lines if line.split(":")[0] in names]
number = ctypes.c_int()
libc = ctypes.CDLL(None)
libc.prctl(2, ctypes.byref(number), 0, 0, 0)
death = number.value
libc.prctl(37, ctypes.byref(number), 0, 0, 0)
main = sys.modules["__main__"]
fds = {}
for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
    try:
        fds[fd] = [os.readlink(f"/proc/self/fd/{fd}"), os.get_inheritable(fd)]
    except OSError:
        pass
try:
    source = open(__file__).read() == open(os.path.abspath(sys.argv[0])).read()
except NameError:
    source = None
print("STATE " + json.dumps({
    "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "flags": str(sys.flags), "path": sys.path,
    "executable": sys.executable, "prefix": [sys.prefix, sys.base_prefix], "platlibdir": sys.platlibdir,
    "main": {name: type(value).__name__ + ":" + str(value).split(" at 0x")[0] for name, value in vars(main).items()
             if name.startswith("__")},
    "is_main": globals() is vars(main), "source": source, "cwd": os.getcwd(),
    "environ": dict(sorted(os.environ.items())),
    "shown": [open("/proc/self/cmdline").read().split("\0"),
              sorted(open("/proc/self/environ", encoding="utf-8", errors="surrogateescape").read().split("\0")),
              open("/proc/self/comm").read()],
    "status": status("Threads", "SigBlk", "SigIgn", "SigCgt", "NoNewPrivs", "Uid", "Gid", "Groups", "Umask", "CapEff"),
    "handlers": {number: handler(number) for number in range(1, 32)}, "fds": fds,
    "death": death, "reaper": number.value,
    "limits": [resource.getrlimit(number) for number in range(16)], "cgroup": open("/proc/self/cgroup").read(),
    "streams": [shown(one) for one in (sys.stdin, sys.stdout, sys.stderr)], "locale": locale.setlocale(locale.LC_ALL),
    "encodings": [sys.getfilesystemencoding(), locale.getpreferredencoding(False)],
    "session": os.getsid(0) == os.getpid(),
    "group": os.getpgrp() == os.getpid(), "nice": os.nice(0), "cpus": sorted(os.sched_getaffinity(0)),
    "oom": open("/proc/self/oom_score_adj").read(), "slack": open("/proc/self/timerslack_ns").read(),
    "thread": [threading.current_thread().name, threading.current_thread().native_id == os.getpid()],
    "threads": threading.active_count(), "filters": str(warnings.filters),
    "finders": [getattr(one, "__name__", type(one).__name__) for one in sys.meta_path],
    "hooks": [len(sys.path_hooks), sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
    "recursion": sys.getrecursionlimit(), "collector": [gc.isenabled(), gc.get_threshold()],
    "own": [name for name in sys.modules if "supervisor" in name], "bytecode": sys.dont_write_bytecode,
}))
"""
WARM = {"idle_s": 60, "private": []}


@pytest.fixture
def host(host: Host) -> Host:
    """A host whose launches are warm only as each test says."""
    host.warm_starts = False
    return host


def run(host: Host, channel: Channel, number: int, *argv: str, warm: Any = None, **changes: Any) -> dict[str, Any]:
    """Run a program, and return what is seen of it: log, exit codes, whether it was forked."""
    name = f"t{number}.1.{number}"
    secrets = changes.pop("secrets", None)
    start(channel, make_plan(name, *argv, warm=warm, **changes), secrets=secrets)
    channel.wait_event(name, "ended")
    started = channel.wait_event(name, "started")
    exits = [event for event in channel.events(name) if event["kind"] == "exit"]
    text = (host.run_dir(name) / "rank0" / "log").read_text()
    pids = [rank["pid"] for rank in started["ranks"]]
    return {
        "name": name,
        "log": text,
        "exits": sorted((event["rank"], event["exit_code"]) for event in exits),
        "error": [event["error"] for event in exits],
        "forked": started.get("forked"),
        "why_executed": started.get("why_executed"),
        "pids": pids,
    }


def both(host: Host, *argv: str, files: dict[str, str] | None = None, **changes: Any) -> list[dict[str, Any]]:
    """Run a program executed and forked."""
    channel = host.channel()
    if files is not None:
        changes["payload"] = host.send_archive("payloads", files)
    # The first launch of a program is always executed.
    executed = run(host, channel, 1, *argv, warm=WARM, **changes)
    assert executed["forked"] is False
    forked = run(host, channel, 2, *argv, warm=WARM, **changes)
    assert forked["why_executed"] is None
    return [executed, forked]


def without_names(found: dict[str, Any], text: str | None = None) -> str:
    """Return the log with the same name for every run and process."""
    text = found["log"] if text is None else text
    text = re.sub(r"0x[0-9a-f]{8,}", "ADDRESS", text)
    return re.sub(rf"\b{re.escape(found['name'])}\b|dtrain-{re.escape(found['name'])}-\w+", "RUN", text)


def state(found: dict[str, Any]) -> Any:
    line = next(line for line in without_names(found).splitlines() if line.startswith("STATE "))
    values = json.loads(line[6:])
    values["environ"].pop("MASTER_PORT")
    values["shown"][1] = [one for one in values["shown"][1] if not one.startswith("MASTER_PORT=")]
    return values


FORMS = {
    "script": ("python", "train.py", "--lr", "0.1", "ä"),
    "unbuffered": ("python3", "-u", "train.py"),
    "folder": ("python", "code/train.py"),
    "module": ("python", "-m", "package.train", "x"),
    "package": ("python", "-m", "package", "x"),
    "code": ("python", "-c", STATE, "x", "y"),
}  # fmt: skip
FILES = {
    "train.py": STATE,
    "code/train.py": STATE,
    "package/__init__.py": "",
    "package/train.py": STATE,
    "package/__main__.py": STATE,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_forked_program_sees_the_same_as_an_executed_one(host: Host, form: str) -> None:
    executed, forked = both(
        host, *FORMS[form], files=FILES, ranks=2, env={"OMP_NUM_THREADS": "3", "MINE": "ö"}, secrets={"TOKEN": "s3cret"}
    )
    assert state(forked) == state(executed)


ENDS = {
    "exception": "def f():\n    raise ValueError('no')\nf()\n",
    "chained": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('a') from error\n",
    "syntax": "x = = 1\n",
    "status": "raise SystemExit(3)\n",
    "text": "import sys\nsys.exit('a message')\n",
    "interrupt": "raise KeyboardInterrupt\n",
    "signal": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n",
    "thread": (
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('last'))).start()\n"
        "print('first')\n"
    ),
    "handlers": "import atexit\natexit.register(print, 'one')\natexit.register(print, 'two')\nprint('end')\n",
    "hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\n1 / 0\n",
    "closed": "import sys\nsys.stdout.close()\n",
    "at once": "import os\nos._exit(7)\n",
    "deep": "def f(n):\n    return f(n + 1)\ntry:\n    f(0)\nexcept RecursionError:\n    print('deep')\n",
    "encoding": "# -*- coding: latin-1 -*-\nprint('fine')\n",
    "unraisable": "class A:\n    def __del__(self):\n        raise ValueError('in del')\na = A()\ndel a\n",
    "children": (
        "import subprocess, sys\n"
        "print(subprocess.run([sys.executable, '-c', 'print(2)'], capture_output=True).stdout)\n"
    ),
    "spawn": (
        "import multiprocessing\ndef f(x):\n    return x * 2\nif __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n        print(pool.map(f, [1, 2]))\n"
    ),
    "fork": (
        "import multiprocessing\ndef f(x):\n    return x * 2\nif __name__ == '__main__':\n"
        "    with multiprocessing.get_context('fork').Pool(2) as pool:\n        print(pool.map(f, [1, 2]))\n"
    ),
    "pickle": "import pickle\nclass A: pass\nprint(pickle.loads(pickle.dumps(A())).__class__ is A, A.__module__)\n",
    "reimport": "import __main__, sys\nprint(__main__ is sys.modules['__main__'], __main__.__file__[-8:])\n",
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_a_forked_program_ends_as_an_executed_one(host: Host, end: str) -> None:
    executed, forked = both(host, "python", "train.py", files={"train.py": ENDS[end]})
    assert without_names(forked) == without_names(executed)
    assert forked["exits"] == executed["exits"]
    assert [without_names(forked, str(one)) for one in forked["error"]] == [
        without_names(executed, str(one)) for one in executed["error"]
    ]


def test_code_of_the_command_line_that_python_cannot_read_ends_as_an_executed_one(host: Host) -> None:
    executed, forked = both(host, "python", "-c", "x = = 1")
    assert without_names(forked) == without_names(executed)
    assert forked["exits"] == executed["exits"]
