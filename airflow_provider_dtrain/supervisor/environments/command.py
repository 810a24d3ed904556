"""The command ``environment``: finds an environment, starts its build, and reports on it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable

from ..fields import Fields
from ..files.layout import Layout
from ..machine.processes import find_process
from ..names import WORD, Json
from ..refusal import Refused
from .build import start_build
from .folder import EnvironmentFolder
from .install import PASSED, find_uv
from .interpreter import facts_of, find_interpreter, identity_of
from .request import check_environment, check_packages, check_setup, digest_of
from .setup_script import Setup, run_setup

#: Time between two looks at a build.
_POLL_S = 0.1
#: Longest time that an answer waits for the end of a build.
_WAIT_S = 20.0
#: Processes of builds that this process has started and not yet reaped. They may still wait for the lock.
_STARTED: dict[str, subprocess.Popen[bytes]] = {}
#: Build -> variables of the setup script, for the requests that wait for it.
_SETUPS: dict[str, Setup] = {}


def environment_request(layout: Layout, fields: Fields) -> Callable[[], Json]:
    """Check a request, and return the work of a thread."""
    request = check_environment(fields.inner("environment"))
    #: Of the build that the control side waits for.
    waits_for = fields.text("waits_for", WORD, default=None)
    wait_s = fields.number("wait_s", 0, _WAIT_S, default=0)
    build = check_packages(fields.inner("build")) if fields.values.get("build") is not None else None
    setup = check_setup(fields)
    return lambda: _EnvironmentRequest(layout, request, waits_for, build, setup).run(wait_s)


class _EnvironmentRequest:
    def __init__(
        self, layout: Layout, request: Json, waits_for: str | None, build: Json | None, setup: Json | None
    ) -> None:
        self.layout = layout
        self.request = request
        self.waits_for = waits_for
        self.build = build
        self.setup = done = _setup_of(layout, setup, waits_for)
        self.refused = done.refused
        #: The setup script may have put another interpreter, uv or compiler into PATH.
        self.environ = {**os.environ, **done.variables}
        python = request["python"] or (None if setup is None else "python3")
        self.interpreter = find_interpreter(python, self.environ)
        identity = identity_of(self.interpreter, with_packages=request["system_site_packages"])
        if own := {name: done.variables[name] for name in PASSED if name in done.variables}:
            # They decide what is compiled.
            identity["variables"] = own
        self.folder = EnvironmentFolder(layout, digest_of(request, identity))

    def run(self, wait_s: float) -> Json:
        """Return the state of the environment, at the end of its build or after ``wait_s``."""
        deadline = time.monotonic() + wait_s
        while True:
            answer = self._state()
            if answer["state"] != "building":
                _SETUPS.pop(self.waits_for or "", None)
            if answer["state"] != "building" or time.monotonic() > deadline:
                return {"digest": self.folder.digest, "refused_variables": self.refused, **answer}
            time.sleep(_POLL_S)

    def _state(self) -> Json:
        if self.request["lock"] is None:
            return {"state": "ready", "python": self.interpreter, "digest": None}
        # Before the check of the environment: a process that has ended has left its result.
        is_alive = self.waits_for is not None and _is_alive(self.waits_for)
        mark = damage = None
        with contextlib.suppress(FileNotFoundError):
            lock = self.folder.share()
            if lock is None:
                return self._building()
            try:
                mark = self.folder.mark()
                damage = None if mark is None else self.folder.damage(mark)
            finally:
                os.close(lock)
        if mark is not None and damage is None:
            return self._ready(mark)
        if is_alive:
            return self._building()
        state = self.folder.state()
        if self.waits_for is not None and state.get("id") == self.waits_for:
            return {"state": "failed", **_failure(state)}
        if damage is not None:
            self._withdraw(damage)
        facts = facts_of(self.interpreter, self.environ, with_packages=self.request["system_site_packages"])
        if self.build is not None:
            return self._start(facts)
        has_uv = find_uv(self.environ.get("PATH")) is not None
        return {"state": "absent", "damage": damage, "facts": facts, "has_uv": has_uv}

    def _building(self) -> Json:
        state = self.folder.state()
        # The process that has the lock may not have written its first state.
        is_current = find_process(state.get("process")) is not None
        progress = str(state.get("progress")) if is_current else "begins"
        return {"state": "building", "build": state.get("id") if is_current else self.waits_for, "progress": progress}

    def _ready(self, mark: Json) -> Json:
        self.folder.touch()
        own = {"packages": mark.get("packages"), "built_s": mark.get("built_s")}
        return {"state": "ready", "python": self.folder.python, **own}

    def _withdraw(self, damage: str) -> None:
        """Let a damaged environment count as incomplete, because the next sample may miss the damage.

        :raises Refused: ``in_use``, a run uses it
        """
        lock = self.folder.seize()
        if lock is None:
            message = f"Environment {self.folder.digest[:12]} is damaged ({damage}), and a run on this host uses it"
            raise Refused("in_use", f"{message}. It is built again once the run has ended.")
        try:
            self.folder.remove_mark()
        finally:
            os.close(lock)

    def _start(self, facts: Json) -> Json:
        assert self.build is not None
        request = {**self.request, **self.build, "digest": self.folder.digest, "facts": facts}
        _STARTED[self.build["id"]] = start_build(["--remote-dir", self.layout.remote_dir], request, self.environ)
        self.waits_for, self.build = self.build["id"], None
        _SETUPS[self.waits_for] = self.setup
        return self._building()


def _is_alive(build: str) -> bool:
    """Return whether the process of a build that this process has started lives."""
    process = _STARTED.get(build)
    if process is None:
        return False
    if process.poll() is None:
        return True
    _STARTED.pop(build, None)
    return False


def _failure(state: Json) -> Json:
    failure = state.get("failure")
    if isinstance(failure, dict):
        return {"code": failure.get("code"), "message": failure.get("message"), **_details(failure)}
    message = f"Its process was killed while it {state.get('progress', 'began')}"
    return {"code": "killed", "message": f"{message}. Is this host out of memory?", **_details({})}


def _details(failure: Json) -> Json:
    return {"package": failure.get("package"), "lines": failure.get("lines") or []}


def _setup_of(layout: Layout, setup: Json | None, waits_for: str | None) -> Setup:
    """Return the variables of a setup script, which does not run again for a request that waits for a build."""
    if setup is None:
        return Setup({}, [])
    return _SETUPS.get(waits_for or "") or run_setup(layout, setup["payload"], setup["path"])
