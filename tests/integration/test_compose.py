"""docker/compose.yaml on podman: images from the wheel, a gang over both hosts, a search, a restart, the end.

The base image is made of Debian's packages, and PostgreSQL is Debian's in an image with the official one's variables,
because no registry is needed here. Podman starts health checks by systemd, which a container without it lacks, so the
tests run them.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.images import Builder
from testbed.own_podman import Podman
from testbed.standalone import free_port
from tests.support.composed import ROOT, Composed, why_no_compose

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.airflow,
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_no_compose()), reason=str(why_no_compose())),
]
AIRFLOW, HOST = "localhost/dtrain-airflow", "localhost/dtrain-host"
HOSTS = ("host-1", "host-2")


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    podman = Podman(tmp_path_factory.mktemp("podman"))
    yield podman
    podman.close()


@pytest.fixture(scope="module")
def built(podman: Podman) -> Composed:
    """The services, with images and not started."""
    builder = Builder(podman)
    builder.debian()
    builder.postgres()
    services = Composed(podman, builder, port=free_port())
    print(f"images built in {services.build():.0f} s")
    return services


@pytest.fixture(scope="module")
def services(built: Composed) -> Iterator[Composed]:
    """The services, with a healthy Airflow."""
    print(f"healthy after {built.up():.0f} s")
    yield built
    built.down("--volumes")


def inside(podman: Podman, image: str, script: str, *options: str) -> str:
    """Return the output of a shell script in a new container of an image."""
    argv = ["podman", "run", "--rm", "--network=none", *options, "--entrypoint", "sh", image, "-c", script]
    return podman.run(*argv).stdout


def test_the_provider_comes_from_a_wheel_and_packages_are_the_tested_ones(built: Composed) -> None:
    metadata = "/opt/dtrain/lib/python3*/site-packages/airflow_provider_dtrain-*.dist-info"
    origin = json.loads(inside(built.podman, AIRFLOW, f"cat {metadata}/direct_url.json"))
    assert re.fullmatch(r"file:///dist/airflow_provider_dtrain-.*-py3-none-any\.whl", origin["url"])
    assert inside(built.podman, AIRFLOW, "ls -d /src 2>&1 || true").startswith("ls: cannot access")
    pinned = dict(re.findall(r"^([^=#]+)==(\S+)$", (ROOT / "scripts/constraints.txt").read_text(), re.MULTILINE))
    for image, python in ((AIRFLOW, "/opt/dtrain/bin/python"), (HOST, "/opt/train/bin/python")):
        frozen = dict(
            re.findall(r"^([^=]+)==(\S+)$", inside(built.podman, image, f"{python} -m pip freeze"), re.MULTILINE)
        )
        installed = {name.lower().replace("_", "-"): version for name, version in frozen.items()}
        others = {name: version for name, version in installed.items() if pinned.get(name, version) != version}
        assert others == {}
        assert {"numpy", "apache-airflow"} & set(installed)


def test_the_images_run_without_root_and_hold_neither_keys_nor_settings_of_the_builder(built: Composed) -> None:
    assert inside(built.podman, AIRFLOW, "id -u").strip() == "50000"
    assert inside(built.podman, HOST, "id -u dtrain").strip() == "50000"
    settings = [line.partition("= ")[2] for line in built.builder.pip_conf.read_text().splitlines() if "/" in line]
    for image in (AIRFLOW, HOST):
        assert inside(built.podman, image, "cat /etc/pip.conf /root/.config/pip/pip.conf 2>/dev/null || true") == ""
        assert inside(built.podman, image, "ls /etc/ssh/*_key /keys/* 2>/dev/null || true") == ""
        history = built.podman.run("podman", "history", "--no-trunc", "--format=json", image).stdout
        description = json.dumps(built.podman.image(image))
        assert [value for value in settings if value in history + description] == []
        assert "PIP_" not in json.dumps(built.podman.image(image)["Config"])


def test_a_host_and_airflow_name_what_is_missing_before_they_start(built: Composed) -> None:
    run = ["podman", "run", "--rm", "--network=none"]
    host = built.podman.run(*run, "--hostname=host-1", HOST, check=False)
    assert host.returncode == 1
    assert host.stderr == "host-1: /keys/ssh_host_ed25519_key is missing. Make the keys first: docker compose up keys\n"
    airflow = built.podman.run(*run, AIRFLOW, check=False)
    assert airflow.returncode == 1
    assert "/keys/id_ed25519 is missing. Make the keys first: docker compose up keys" in airflow.stderr
    small = built.podman.run(*run, "--memory=512m", AIRFLOW, check=False)
    assert small.returncode == 1
    assert "of free memory are needed, 512 MB are there" in small.stderr
    keys = built.podman.run(*run, "--volume=one-of-two:/keys/airflow", HOST, "make-keys.sh", "host-9", check=False)
    assert keys.returncode == 1
    assert "/keys/host-9 is not a volume of this service" in keys.stderr
    built.podman.run("podman", "volume", "rm", "one-of-two")


def trained(services: Composed) -> dict[str, Any]:
    """Train on all slots of both hosts, and return the result."""
    state, run_id = services.run("dtrain_digits", {"slots_per_trial": 4, "epochs": 4})
    assert state == "success", services.log("dtrain_digits", run_id, "train")[-6000:]
    return dict(services.xcom("dtrain_digits", run_id, "train"))


def test_digits_trains_over_both_hosts(services: Composed) -> None:
    result = trained(services)
    assert result["state"] == "completed"
    assert result["metric"] > 0.9
    assert sorted(host["host"] for host in result["hosts"]) == list(HOSTS)
    assert sorted(rank["rank"] for host in result["hosts"] for rank in host["ranks"]) == [0, 1, 2, 3]


def test_a_search_runs_all_its_trials(services: Composed) -> None:
    state, run_id = services.run("dtrain_asha_search", {"max_trials": 4, "epochs": 2})
    assert state == "success", services.api("GET", f"/dags/dtrain_asha_search/dagRuns/{run_id}/taskInstances")
    best = services.xcom("dtrain_asha_search", run_id, "show")
    assert 0.2 < best <= 1
    newest = max(services.page("GET", "/experiments")["rows"], key=lambda row: row["experiment_id"])
    trials = services.page("GET", f"/trials?experiment_id={newest['experiment_id']}")["rows"]
    assert len(trials) == 4
    assert {trial["state"] for trial in trials} <= {"completed", "stopped"}


def test_the_doctor_finds_nothing_and_host_keys_are_checked(services: Composed) -> None:
    lines = json.loads(services.exec("airflow", "airflow", "dtrain", "doctor", "-o", "json"))
    assert [line for line in lines if not line["ok"]] == []
    known = services.exec("airflow", "cat", "/home/airflow/.ssh/known_hosts")
    assert re.findall(r"^(\S+) ssh-ed25519", known, re.MULTILINE) == list(HOSTS)
    for host in HOSTS:
        public = services.exec(host, "cat", "/keys/ssh_host_ed25519_key.pub").split()[1]
        assert f"{host} ssh-ed25519 {public}" in known


def test_a_wrong_password_of_the_database_is_named_at_once(services: Composed) -> None:
    address = "postgresql+psycopg://airflow:other@postgres/dtrain"
    began = time.monotonic()
    output = services.compose(
        "run", "--rm", "-T", "--no-deps", "-e", f"AIRFLOW__DTRAIN__SQL_ALCHEMY_CONN={address}", "airflow", check=False
    )
    assert 'password authentication failed for user "airflow"' in output
    assert "PostgreSQL cannot be used" in output
    assert time.monotonic() - began < 45, "no repetition"


def test_training_code_reaches_neither_keys_nor_the_database(services: Composed) -> None:
    for path in ("/keys/ssh_host_ed25519_key", "/etc/shadow"):
        assert "Permission denied" in services.exec("host-1", "cat", path, user="dtrain", check=False)
    assert services.exec("host-1", "sh", "-c", "ls /keys").split() == [
        "authorized_keys",
        "ssh_host_ed25519_key",
        "ssh_host_ed25519_key.pub",
    ]
    resolve = "import socket; print(socket.gethostbyname_ex({!r})[2])"
    python = ("/opt/train/bin/python", "-c")
    assert services.exec("host-1", *python, resolve.format("host-2"), user="dtrain").startswith("['")
    assert "socket.gaierror" in services.exec("host-1", *python, resolve.format("postgres"), check=False)


def stored(services: Composed, trial_id: int) -> dict[str, Any]:
    """Return what the pages show of a trial, of all trials, and the accuracy in the task log."""
    trial = services.page("GET", f"/trials/{trial_id}")
    checkpoints = services.page("GET", f"/trials/{trial_id}/checkpoints")["rows"]
    return {
        "trials": {row["trial_id"]: row["state"] for row in services.page("GET", "/trials")["rows"]},
        "checkpoints": [(one["checkpoint_id"], one["sha256"], one["copy_url"]) for one in checkpoints],
        "log": base64.b64decode(services.page("GET", f"/trials/{trial_id}/log")["content"]).decode(),
        "task log": re.findall(
            r"Best accuracy [0-9.]+", services.log("dtrain_digits", trial["task"]["run_id"], "show")
        ),
    }


def check_files(services: Composed, result: dict[str, Any]) -> None:
    """Check that the copy of the best checkpoint is in the container of Airflow, and the latest one on its host."""
    services.exec("airflow", "ls", result["checkpoint"])
    checkpoints = services.page("GET", f"/trials/{result['trial_id']}/checkpoints")["rows"]
    latest = [one for one in checkpoints if one["removed_at"] is None][-1]
    run = f"/home/dtrain/state/runs/*-t{result['trial_id']}.{latest['attempt']}.*"
    services.exec(latest["host"], "sh", "-c", f"ls {run}/{latest['path']}", user="dtrain")


def test_trials_checkpoints_and_logs_are_there_after_a_restart(services: Composed) -> None:
    result = trained(services)
    before = stored(services, result["trial_id"])
    assert "parameters sha256" in before["log"]
    assert before["task log"]
    assert before["checkpoints"]
    keys = services.exec("airflow", "cat", "/keys/known_hosts")
    services.down()
    assert not services.is_running("airflow")
    services.up()
    assert stored(services, result["trial_id"]) == before
    assert services.exec("airflow", "cat", "/keys/known_hosts") == keys
    check_files(services, result)
    assert trained(services)["state"] == "completed"


def test_a_backup_is_restored_by_the_commands_of_the_page(services: Composed, tmp_path: Path) -> None:
    page = (ROOT / "docs/docker.md").read_text()
    section = page.partition("## Backup\n")[2].partition("\n## ")[0]
    save, restore = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    result = trained(services)
    before = stored(services, result["trial_id"])
    services.shell(save, tmp_path)
    services.down("--volumes")
    services.shell(restore, tmp_path)
    services.log_in_when_healthy()
    assert stored(services, result["trial_id"]) == before
    check_files(services, result)
    assert trained(services)["state"] == "completed"


def test_down_with_volumes_removes_everything(services: Composed) -> None:
    services.down("--volumes")
    for kind in ("container", "volume"):
        listed = services.podman.run(
            "podman", kind, "ls", *(["--all"] if kind == "container" else []), "--quiet"
        ).stdout
        assert listed == ""
    names = services.podman.run("podman", "network", "ls", "--format", "{{.Name}}").stdout.split()
    assert names == ["podman"]


def test_a_port_in_use_is_named(built: Composed, tmp_path: Path) -> None:
    """The last one: it leaves containers that were not started."""
    taken = ["python3", "-m", "http.server", "--bind", "127.0.0.1", built.variables["DTRAIN_PORT"]]
    server = subprocess.Popen(
        built.podman.argv(*taken), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        output = built.compose("up", "--detach", "--no-build", check=False)
    finally:
        server.kill()
        built.down("--volumes")
    assert "address already in use" in output
