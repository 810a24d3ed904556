"""A seeded site with its pages: a store whose trials go on in real time, and an API server.

``python -m testbed.pages_site FOLDER`` keeps one running for work on pages. Tests use it with
``DTRAIN_PAGES_SITE=FOLDER``.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from airflow_provider_dtrain.store.store import Store
from testbed.api_server import ApiServer
from testbed.roles import ROLES
from testbed.seed.airflow_side import migrate_metadata
from testbed.seed.small import HOSTILE_NAME
from testbed.standalone import wait_until

#: File of a folder with the address of the running server.
ADDRESS = "address.json"
SEED_TIMEOUT_S = 900.0
STOP_TIMEOUT_S = 20.0
_NAMED = re.compile(r"\{(experiment|trial|run) ([^}/]+)(?:/(\d+))?\}")


class PagesSite:
    """Pages of a seeded store.

    :param folder: empty; it becomes AIRFLOW_HOME
    :param scene: of ``python -m testbed.seed``
    :param has_airflow: also write the DAG runs of the trials into the metadata database
    :param url: of the store; None = a SQLite file in the folder
    :param is_seeded: the store is seeded already, and its trials do not go on
    """

    def __init__(
        self,
        folder: Path,
        *,
        scene: str = "small",
        has_airflow: bool = True,
        url: str | None = None,
        is_seeded: bool = False,
    ) -> None:
        self.folder, self.is_seeded = folder, is_seeded
        self.url = url or f"sqlite:///{folder / 'seeded.db'}"
        self.server = ApiServer(folder, self.url)
        copies = ["--copies", str(folder / "dtrain" / "checkpoints")] if scene == "small" else []
        options = [*copies, *(["--airflow"] if has_airflow else [])]
        self._command = [
            sys.executable,
            "-m",
            "testbed.seed",
            "--store",
            self.url,
            "--scene",
            scene,
            "--live",
            *options,
        ]
        self._seed: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Seed the store, and start the server meanwhile."""
        if self.is_seeded:
            migrate_metadata(self.server.environment)
            self.server.start()
            return
        with (self.folder / "seed.log").open("wb") as log:
            self._seed = subprocess.Popen(
                self._command, env=self.server.environment, stdout=log, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        failures: list[BaseException] = []
        starting = threading.Thread(target=self._start_server, args=(failures,))
        starting.start()
        wait_until(self._is_seeded, timeout_s=SEED_TIMEOUT_S, what="the seed", poll_s=0.2)
        starting.join()
        if failures:
            raise failures[0]

    def _start_server(self, failures: list[BaseException]) -> None:
        try:
            migrate_metadata(self.server.environment)
            self.server.start()
        except BaseException as error:
            failures.append(error)

    def _is_seeded(self) -> bool:
        assert self._seed is not None
        text = (self.folder / "seed.log").read_text(errors="replace")
        if self._seed.poll() is not None:
            raise RuntimeError(f"python -m testbed.seed ended: {text[-4000:]}")
        return "go on in real time" in text

    @classmethod
    def attach(cls, folder: Path) -> PagesSite:
        """Return the site that another process keeps running in a folder. Its stop is left to that process."""
        found = cls(folder)
        found.server.use(json.loads((folder / ADDRESS).read_text()))
        return found

    @classmethod
    @contextmanager
    def of(cls, folder: Path | None, scene: str = "small") -> Iterator[PagesSite]:
        """Yield the site that another process keeps running in a folder, or without a folder a new one of a scene."""
        if folder is not None:
            yield cls.attach(folder.absolute())
            return
        with tempfile.TemporaryDirectory() as home, cls(Path(home), scene=scene) as started:
            yield started

    def store(self) -> Store:
        """Open the store a second time."""
        return Store.open(self.url)

    def address(self, path: str) -> str:
        """Return an address with the ids of the store.

        :param path: address below the server's; ``{experiment NAME}``, ``{trial EXPERIMENT/NUMBER}`` and ``{run DAG}``
            stand for ids, and the name ``HOSTILE`` for the one with markup
        """
        store = self.store()
        try:
            return _NAMED.sub(lambda found: _id_of(store, *found.groups()), path)
        finally:
            store.close()

    def stop(self) -> None:
        self.server.stop()
        if self._seed is not None:
            self._seed.send_signal(signal.SIGTERM)
            try:
                self._seed.wait(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._seed.kill()
                self._seed.wait()

    def __enter__(self) -> PagesSite:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def keep(self) -> None:
        """Keep the site running until a signal."""
        (self.folder / ADDRESS).write_text(json.dumps(self.server.base))
        print(
            f"Pages: {self.server.base}/plugin/dtrain/experiments, users and passwords: {', '.join(ROLES)}", flush=True
        )
        over = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: over.set())
        over.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _id_of(store: Store, kind: str, name: str, number: str | None) -> str:
    if kind == "run":
        return quote(store.trials.list(dag_id=name, limit=1)[0].key.run_id, safe="")
    (experiment,) = store.experiments.list(name=HOSTILE_NAME if name == "HOSTILE" else name)
    if kind == "experiment":
        return str(experiment.experiment_id)
    trials = store.trials.list(experiment_id=experiment.experiment_id, limit=None)
    return next(str(trial.trial_id) for trial in trials if trial.number == int(number or 0))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m testbed.pages_site", description="Keeps a seeded site running.")
    parser.add_argument("folder", type=Path, help="empty; it becomes AIRFLOW_HOME")
    parser.add_argument("--scene", default="small", choices=("small", "failures", "inference", "large"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with PagesSite(options.folder.absolute(), scene=options.scene, has_airflow=options.scene != "large") as site:
        site.keep()


if __name__ == "__main__":
    main()
