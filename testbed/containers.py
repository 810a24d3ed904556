"""Podman for tests and benchmarks, and an image made of this machine's own files, because no registry is needed."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from testbed.podman_settings import write_settings
from testbed.programs import unpacked_supervisor

#: Image with a shell and Python, and one with a shell alone. Their names have the interpreter's version.
IMAGE = f"localhost/dtrain-compiled:python-{sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]}"
WITHOUT_PYTHON = "localhost/dtrain-compiled:shell"
_BUSYBOX = "/bin/busybox"
_NOT_COPIED = shutil.ignore_patterns(
    "site-packages", "dist-packages", "test", "tests", "config-*", "ensurepip", "idlelib", "tkinter",
    "lib2to3", "turtledemo", "*.a",
)  # fmt: skip


def settings() -> dict[str, str]:
    """Return the environment with a podman that runs containers on this machine."""
    return {"PATH": f"{_wrapper()}:{os.environ['PATH']}"}


@functools.cache
def _wrapper() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="dtrain-podman-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    settings = write_settings(folder)
    program = folder / "podman"
    program.write_text(f'#!/bin/sh\nCONTAINERS_CONF={settings} exec {shutil.which("podman")} "$@"\n')
    program.chmod(0o755)
    folder.chmod(0o755)
    return folder


@functools.cache
def why_no_podman() -> str | None:
    """Return the reason why containers cannot be tested here, None if they can."""
    for program in ("podman", _BUSYBOX):
        if shutil.which(program) is None:
            return f"{program} is not installed (apt-get install podman busybox-static)"
    if _image(WITHOUT_PYTHON, python=False) and _image(IMAGE, python=True):
        argv = ["podman", "run", "--rm", "--network", "host", IMAGE, "python3", "-c", "print('works')"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env={**os.environ, **settings()})
        if done.stdout == "works\n":
            return None
        return f"podman runs no containers here: {done.stderr.strip()[-200:]}"
    return "podman imports no image here"


def _image(name: str, *, python: bool) -> bool:
    """Make an image of this machine's files unless it exists."""
    if subprocess.run(["podman", "image", "exists", name], timeout=60).returncode == 0:
        return True
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        for place in ("bin", "tmp", "etc", "proc", "sys", "dev", "root", "usr/local"):
            (root / place).mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        shutil.copy2(_BUSYBOX, root / "bin/busybox")
        for program in ("sh", "sleep", "cat", "id", "touch", "ls", "kill"):
            (root / "bin" / program).symlink_to("busybox")
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nother:x:1234:1234::/:/bin/sh\n")
        if python:
            _copy_python(root)
        tar = subprocess.Popen(["tar", "-c", "-C", folder, "."], stdout=subprocess.PIPE)
        changes = ("ENV PATH=/usr/local/bin:/bin", "ENV LD_LIBRARY_PATH=/usr/local/lib", "ENV OF_IMAGE=1", "USER 1234")
        options = [part for change in changes for part in ("--change", change)]
        done = subprocess.run(
            ["podman", "import", *options, "-", name], stdin=tar.stdout, capture_output=True, timeout=300
        )
        tar.wait()
    return done.returncode == 0


def _copy_python(root: Path) -> None:
    """Copy this interpreter with its standard library and the system's libraries that both need."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    target = root / "usr/local"
    shutil.copytree(sysconfig.get_path("stdlib"), target / "lib" / version, ignore=_NOT_COPIED, symlinks=True)
    (target / "bin").mkdir()
    shutil.copy2(os.path.realpath(sys.executable), target / "bin" / version)
    (target / "bin/python3").symlink_to(version)
    for library in Path(sys.base_prefix, "lib").glob("libpython3*.so*"):
        shutil.copy2(library, target / "lib")
    # PyTorch itself is mounted.
    torch = importlib.util.find_spec("torch")
    beside = Path(torch.origin).parent.glob("lib/*.so*") if torch is not None and torch.origin else ()
    programs = [target / "bin" / version, *target.glob(f"lib/{version}/lib-dynload/*.so"), *beside]
    found = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False).stdout
    for path in set(re.findall(r"(/\S*lib\S*\.so\S*)", found)):
        if "libpython3" not in path and "site-packages" not in path and os.path.isfile(path):
            place = root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place)


def container_argv(
    host_state: Path,
    run: str,
    *options: str,
    image: str = IMAGE,
    python: str = "python3",
    runtime: str = "podman",
    program: str | None = None,
) -> list[str]:
    """Return a command line for the container of a run, like those of the control side."""
    program = program or str(unpacked_supervisor())
    folder = f"{host_state}/runs/{run}"
    code = f"import sys; sys.path.insert(0, {program!r}); from airflow_provider_dtrain.supervisor.contained import main"
    code += "; main()"
    return [
        runtime, "run", "--rm", "--pull", "never", "--log-driver", "none", "--network", "host", "--ipc", "host",
        "--user", f"{os.getuid()}:{os.getgid()}", "--security-opt", "no-new-privileges",
        "--label", f"dtrain.run={folder}", "--env", f"DTRAIN_RUN={run}", "--env", f"DTRAIN_RUN_DIR={folder}",
        "--mount", f"type=bind,source={folder},target={folder}",
        "--mount", f"type=bind,source={program},target={program},ro", *options,
        "--entrypoint", python, image, "-I", "-c", code, str(host_state), run,
    ]  # fmt: skip
