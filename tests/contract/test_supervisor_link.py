"""The link and the real supervisor together: locally, behind sshd, over crash, partition and reboot."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from airflow_provider_dtrain.errors import HostRefusedError, SlotBusyError
from airflow_provider_dtrain.hosts.channel.link import HostLink
from airflow_provider_dtrain.hosts.payload import library, pack
from airflow_provider_dtrain.hosts.transport.local import LocalTransport
from airflow_provider_dtrain.hosts.wire import Frame, ProgressFrame
from testbed.netns.transport import ssh_to
from tests.support.lock_dirs import new_lock_dir

pytest_plugins = ["testbed.netns.plugin"]

Run = tuple[HostLink, str, dict[str, Any]]
SCRIPT = """
import json, os, sys
print("rank", os.environ["RANK"], "reads", open("data.txt").read().strip(), flush=True)
if "wait" in sys.argv:
    sys.stdin.close()
    import time
    while True:
        time.sleep(60)
sys.exit(int(sys.argv[1]))
"""


def connect(transport: Any, state_dir: str | None = None, lock_dir: str | None = None) -> HostLink:
    return HostLink.connect(
        transport, remote_dir=".dtrain", state_dir=state_dir, lock_dir=lock_dir, python=sys.executable
    )


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.netns)])
def link(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HostLink]:
    if request.param == "local":
        made = connect(LocalTransport(home=tmp_path), str(tmp_path / "state"), new_lock_dir(tmp_path))
    else:
        made = connect(ssh_to(request.getfixturevalue("hosts").host(0)))
    yield made
    made.close()


def answer(link: HostLink, cmd: str, **args: Any) -> dict[str, Any]:
    return link.call(cmd, timeout_s=30, **args).result(timeout=40)


def plan(link: HostLink, run: str, argv: list[str], tmp_path: Path, slots: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """Send what a run needs and return its plan."""
    code = tmp_path / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text(SCRIPT)
    (code / "data.txt").write_text("the payload\n")
    payload = pack(code)
    if answer(link, "have", kind="payloads", digests=[payload.digest])["missing"]:
        link.send_archive("payloads", payload.digest, payload.content)
    ranks = [{"rank": i, "local_rank": i, "slot": slot, "device": None} for i, slot in enumerate(slots)]
    return {
        "protocol": 1, "run": run, "store": "store-of-tests", "token": int(run.rsplit(".", 1)[1]), "host": link.host,
        "group_rank": 0, "group_world_size": 1, "world_size": len(slots), "ranks": ranks, "argv": argv, "python": None,
        "env": {}, "payload": payload.digest, "library": None, "port_range": None,
        "grace_s": 2, "orphan_timeout_s": 900, "prepare_timeout_s": 60, "timeout_s": None,
        "log_limit_bytes": 1 << 20, "cpu_slots": True,
    }  # fmt: skip


def start(link: HostLink, document: dict[str, Any]) -> Queue[Frame]:
    prepared = answer(link, "prepare", plan=document, secrets={})
    frames: Queue[Frame] = Queue()
    link.subscribe(document["run"], {}, frames.put, logs="all").result(timeout=30)
    answer(link, "go", run=document["run"], master_addr="127.0.0.1", master_port=prepared["port"])
    return frames


def follow(link: HostLink, frames: Queue[Frame], until: str = "ended") -> tuple[list[dict[str, Any]], bytes]:
    """Return the supervisor's events up to one kind, and the log of rank 0."""
    events, log = [], b""
    while not events or events[-1]["kind"] != until:
        frame = frames.get(timeout=30)
        assert frame.t != "lost", frame.reason
        if frame.stream == "supervisor.events":
            events += [json.loads(line[9:]) for line in frame.data.splitlines()]
        elif frame.stream == "rank0.log":
            log += frame.data
        link.ack(frame.run or "", frame.stream or "", frame.end)
    return events, log


def free(link: HostLink, run: str) -> None:
    assert answer(link, "fence", run=run, token=int(run.rsplit(".", 1)[1]), wait_s=10)["clear"] is True


def test_a_host_greets_and_shows_its_facts(link: HostLink) -> None:
    facts = answer(link, "probe")
    assert link.hello.protocol == 1
    assert facts["machine_id"] == link.hello.machine_id
    assert abs(link.clock_offset_s) < 2


def test_a_run_goes_from_payload_to_its_end(link: HostLink, tmp_path: Path) -> None:
    frames = start(link, plan(link, "t1.1.1", ["python", "train.py", "0"], tmp_path))
    events, log = follow(link, frames)
    assert [event["kind"] for event in events] == ["prepared", "started", "exit", "ended"]
    assert events[-1]["reason"] == "completed"
    assert log == b"rank 0 reads the payload\n"
    with link.fetching("t1.1.1", "rank0/log") as incoming, tarfile.open(fileobj=incoming, mode="r|") as tar:
        assert [tar.extractfile(member).read() for member in tar] == [log]
    tail = answer(link, "read", run="t1.1.1", stream="rank0.log", offset=-8, length=8)
    assert tail["data"] == b"payload\n"
    free(link, "t1.1.1")


def test_a_slot_that_is_held_is_refused_with_its_holder(link: HostLink, tmp_path: Path) -> None:
    first = plan(link, "t2.1.2", ["python", "train.py", "wait"], tmp_path, slots=(0, 1))
    frames = start(link, first)
    with pytest.raises(SlotBusyError, match="t2.1.2") as busy:
        answer(
            link, "prepare", plan=plan(link, "t3.1.3", ["python", "train.py", "0"], tmp_path, slots=(1,)), secrets={}
        )
    assert busy.value.details["slot"] == 1
    answer(link, "stop", run="t2.1.2", grace_s=1)
    events, _ = follow(link, frames)
    assert events[-1]["reason"] == "stopped"
    free(link, "t2.1.2")
    free(link, "t3.1.3")


def test_a_missing_payload_is_a_refusal_that_names_it(link: HostLink, tmp_path: Path) -> None:
    document = {**plan(link, "t4.1.4", ["python", "x.py"], tmp_path), "payload": "0" * 64}
    with pytest.raises(HostRefusedError) as refused:
        answer(link, "prepare", plan=document, secrets={})
    assert refused.value.code == "need"
    assert refused.value.details["missing"] == ["0" * 64]


def test_the_library_is_taken_and_asked_for_once(link: HostLink) -> None:
    link.send_archive("libraries", library().digest, library().content)
    assert answer(link, "have", kind="libraries", digests=[library().digest, "1" * 64])["missing"] == ["1" * 64]


def test_a_damaged_archive_is_refused(link: HostLink) -> None:
    with pytest.raises(HostRefusedError):
        link.send_archive("payloads", hashlib.sha256(b"one").hexdigest(), b"another")


def test_beats_come_and_renewals_are_taken(link: HostLink, tmp_path: Path) -> None:
    beats: Queue[dict[str, Any]] = Queue()
    link.on_beat = beats.put
    frames = start(link, plan(link, "t5.1.5", ["python", "train.py", "wait"], tmp_path))
    beat = beats.get(timeout=20)
    while "t5.1.5" not in beat["runs"]:
        beat = beats.get(timeout=20)
    before = answer(link, "status")["runs"]["t5.1.5"]["unrenewed_s"]
    link.renew(["t5.1.5"], beat["boottime_s"], 900)
    after = answer(link, "status")["runs"]["t5.1.5"]["unrenewed_s"]
    assert after is not None
    assert before is None or after <= before + 5
    free(link, "t5.1.5")
    assert follow(link, frames)[0][-1]["reason"] == "fenced"


@pytest.mark.nightly
def test_what_the_ranks_do_comes_with_the_beats_to_whoever_asked_for_it(link: HostLink, tmp_path: Path) -> None:
    document = plan(link, "t8.1.8", ["python", "train.py", "wait"], tmp_path)
    prepared = answer(link, "prepare", plan=document, secrets={})
    frames: Queue[Frame] = Queue()
    reports: Queue[ProgressFrame] = Queue()
    link.subscribe("t8.1.8", {}, frames.put, on_progress=reports.put).result(timeout=30)
    answer(link, "go", run="t8.1.8", master_addr="127.0.0.1", master_port=prepared["port"])
    report = reports.get(timeout=30)
    assert (report.run, report.supervisor_stopped_s) == ("t8.1.8", 0)
    assert [(rank.rank, rank.host, rank.silent_s) for rank in report.ranks] == [(0, link.host, None)]
    assert reports.get(timeout=30).boottime_s > report.boottime_s
    free(link, "t8.1.8")
    assert follow(link, frames)[0][-1]["reason"] == "fenced"


def test_files_are_put_into_a_run_folder_and_come_back(link: HostLink) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo("trial_step_5/model.pt")
        member.size = 3_000_000
        tar.addfile(member, io.BytesIO(os.urandom(member.size)))
    with link.putting("t6.1.6", "checkpoints") as outgoing:
        outgoing.write(packed.getvalue())
    with link.fetching("t6.1.6", "checkpoints") as incoming, tarfile.open(fileobj=incoming, mode="r|") as tar:
        assert [one.size for one in tar if one.isfile()] == [3_000_000]
    with pytest.raises(HostRefusedError), link.fetching("t6.1.6", "../../store.json") as incoming:
        incoming.read()
    free(link, "t6.1.6")


def test_a_state_folder_that_cannot_be_used_is_a_refusal_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HostRefusedError, match="refused 'follow'"):
        connect(LocalTransport(home=tmp_path), str(tmp_path / "file"))


def test_a_run_outlives_its_follower_and_is_followed_from_an_offset(tmp_path: Path) -> None:
    lock_dir = new_lock_dir(tmp_path)
    first = connect(LocalTransport(home=tmp_path), str(tmp_path / "state"), lock_dir)
    document = plan(first, "t7.1.7", ["python", "train.py", "wait"], tmp_path)
    events, _ = follow(first, start(first, document), until="started")
    first.close()
    second = connect(LocalTransport(home=tmp_path), str(tmp_path / "state"), lock_dir)
    assert answer(second, "prepare", plan=document, secrets={})["attached"] is True
    frames: Queue[Frame] = Queue()
    offset = answer(second, "read", run="t7.1.7", stream="supervisor.events", offset=0, length=1)["size"]
    second.subscribe("t7.1.7", {"supervisor.events": offset}, frames.put).result(timeout=30)
    answer(second, "stop", run="t7.1.7", grace_s=1)
    rest, _ = follow(second, frames)
    assert [event["seq"] for event in events + rest] == list(range(1, len(events + rest) + 1))
    free(second, "t7.1.7")
    second.close()


def test_a_second_subscriber_gets_the_streams_of_a_run_and_the_first_one_learns_of_it(
    link: HostLink, tmp_path: Path
) -> None:
    """Otherwise recovery could wait for ever for a run that a follower in its process has subscribed to since."""
    first = start(link, plan(link, "t9.1.9", ["python", "train.py", "wait"], tmp_path))
    follow(link, first, until="started")
    second: Queue[Frame] = Queue()
    link.subscribe("t9.1.9", {}, second.put).result(timeout=30)
    while (frame := first.get(timeout=30)).t != "lost":
        pass
    assert "Another follower" in frame.reason
    link.unsubscribe("t9.1.9", first.put)
    events, _ = follow(link, second, until="started")
    assert [event["kind"] for event in events] == ["prepared", "started"]
    answer(link, "stop", run="t9.1.9", grace_s=1)
    follow(link, second)
    free(link, "t9.1.9")


@pytest.mark.nightly
@pytest.mark.netns
def test_a_partition_leaves_the_run_alone_and_a_reboot_ends_it(
    namespace_hosts: Callable[..., Any], tmp_path: Path
) -> None:
    host = namespace_hosts(count=1).host(0)
    link = connect(ssh_to(host))
    boot_id = link.hello.boot_id
    follow(link, start(link, plan(link, "t8.1.8", ["python", "train.py", "wait"], tmp_path)), until="started")
    host.partition()
    link.close()
    host.heal()
    again = connect(ssh_to(host))
    assert again.hello.boot_id == boot_id
    assert answer(again, "status")["runs"]["t8.1.8"]["state"] == "running"
    started_s = time.monotonic()
    host.reboot()
    assert time.monotonic() - started_s < 10
    rebooted = connect(ssh_to(host))
    assert rebooted.hello.boot_id != boot_id
    assert rebooted.hello.machine_id == again.hello.machine_id
    free(rebooted, "t8.1.8")
    assert not [one for one in host.commands().values() if "train.py" in " ".join(one)]
    again.close()
    rebooted.close()
