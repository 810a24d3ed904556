"""A link handles any input from a host: noise, invalid data, silence, refusals, a dead peer."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from airflow_provider_dtrain.errors import (
    EnvironmentMissingError,
    HostLostError,
    HostProtocolError,
    HostRefusedError,
    HostUnreachableError,
    SlotBusyError,
    UserError,
)
from airflow_provider_dtrain.hosts.channel import link as link_module
from airflow_provider_dtrain.hosts.channel.link import MOST_FAULTS, HostLink
from airflow_provider_dtrain.hosts.channel.window import WINDOW_BYTES
from airflow_provider_dtrain.hosts.transport.local import LocalTransport
from airflow_provider_dtrain.hosts.wire import Frame
from testbed.netns.transport import ssh_to
from tests.support.peer_link import PEER, answer, connect, frame
from tests.support.supervisors import program

pytest_plugins = ["testbed.netns.plugin"]


@pytest.fixture(params=["local", pytest.param("ssh", marks=pytest.mark.netns)])
def link(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HostLink]:
    local = request.param == "local"
    made = connect(LocalTransport(home=tmp_path) if local else ssh_to(request.getfixturevalue("hosts").host(0)))
    yield made
    made.close()


def test_the_peer_is_installed_once_and_greets(link: HostLink) -> None:
    assert link.alive
    assert (link.hello.machine_id, link.hello.pid_ns, link.hello.boottime_s) == ("m", 4026531836, 12.5)
    assert link.hello.identity == ("m", "b", 4026531836)


def test_the_installed_folder_is_named_by_its_archive_and_private(tmp_path: Path) -> None:
    for _ in range(2):
        connect(LocalTransport(home=tmp_path)).close()
    installed = list((tmp_path / ".dtrain" / "supervisor").iterdir())
    assert [one.name for one in installed] == [program(PEER).digest]
    assert (installed[0] / "__main__.py").read_bytes() == PEER
    assert installed[0].stat().st_mode & 0o77 == 0
    assert (tmp_path / ".dtrain").stat().st_mode & 0o77 == 0


def test_a_damaged_supervisor_is_replaced(tmp_path: Path) -> None:
    connect(LocalTransport(home=tmp_path)).close()
    (installed,) = (tmp_path / ".dtrain" / "supervisor").iterdir()
    (installed / "__main__.py").write_bytes(PEER[:300])
    connect(LocalTransport(home=tmp_path)).close()
    assert (installed / "__main__.py").read_bytes() == PEER
    assert list((tmp_path / ".dtrain" / "supervisor").iterdir()) == [installed]


def test_an_absolute_remote_dir_is_taken_as_it_is(tmp_path: Path) -> None:
    link = connect(LocalTransport(home=tmp_path), remote_dir=str(tmp_path / "elsewhere"))
    link.close()
    assert (tmp_path / "elsewhere" / "supervisor").is_dir()


def test_a_missing_interpreter_is_an_environment_error(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentMissingError, match=r"interpreter 'python-absent' does not exist.*3\.9"):
        connect(LocalTransport(home=tmp_path), python="python-absent")


def old_interpreter() -> str | None:
    """Return a Python older than 3.9, from PATH or next to this interpreter's installation, None if there is none."""
    versions = Path(sys.base_prefix).parent
    beside = [str(one) for pattern in ("2.7*", "3.8*") for one in versions.glob(f"{pattern}/bin/python")]
    for name in ("python3.8", "python3.7", "python2.7", *beside):
        path = shutil.which(name)
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return path
    return None


def test_an_interpreter_that_is_too_old_is_named_with_its_version(tmp_path: Path) -> None:
    old = old_interpreter()
    if old is None:
        pytest.skip("no Python before 3.9 here")
    with pytest.raises(EnvironmentMissingError, match=r"is Python (2|3)\.\d+\.\d+, 3\.9 or newer"):
        connect(LocalTransport(home=tmp_path), python=old, source=b"print(f'{1!r}' if (x := 1) else 0)  # new syntax\n")


def test_a_remote_dir_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HostRefusedError, match="cannot store the supervisor") as raised:
        connect(LocalTransport(home=tmp_path), remote_dir="file")
    assert raised.value.code == "install"


def test_a_program_that_is_no_supervisor_is_nonsense(tmp_path: Path) -> None:
    with pytest.raises(HostProtocolError, match="no such luck"):
        connect(LocalTransport(home=tmp_path), source=b"import sys; sys.exit('no such luck')\n")


def test_a_greeting_of_another_protocol_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostProtocolError, match="greeting with wrong fields"):
        connect(LocalTransport(home=tmp_path), source=b"print('DTRAIN/1 {\"protocol\": 1}', flush=True); input()\n")


def test_a_greeting_that_never_comes_ends_in_time(tmp_path: Path) -> None:
    with pytest.raises(HostUnreachableError, match="no first line in time"):
        connect(LocalTransport(home=tmp_path), source=b"import sys; print('hm', flush=True); input()\n", timeout_s=1.5)


def test_noise_before_the_greeting_is_dropped_and_too_much_is_an_error(tmp_path: Path) -> None:
    noisy = b"import sys; sys.stdout.write('Welcome!\\nno newline'); sys.stdout.flush()\n" + PEER
    link = connect(LocalTransport(home=tmp_path), source=noisy)
    assert answer(link, "any")["got"] == {"cmd": "any"}
    link.close()
    with pytest.raises(HostProtocolError, match="no greeting within 65536 bytes"):
        connect(LocalTransport(home=tmp_path), source=b"print('x' * 200_000, flush=True)\n" + PEER)


def fetch(link: HostLink, relpath: str) -> bytes:
    with link.fetching("t1.1.1", relpath) as incoming:
        return incoming.read()


@pytest.mark.netns
def test_a_login_script_that_prints_spoils_nothing(namespace_hosts: Callable[..., Any]) -> None:
    host = namespace_hosts(count=1).host(0)
    (host.home / ".bashrc").write_text("echo Welcome to $(hostname); echo careful >&2; printf 'no newline'\n")
    link = connect(ssh_to(host))
    assert answer(link, "any")["got"] == {"cmd": "any"}
    link.send_archive("payloads", hashlib.sha256(b"x").hexdigest(), b"x")
    (host.home / "file").write_bytes(b"content")
    with tarfile.open(fileobj=io.BytesIO(fetch(link, "file"))) as tar:
        assert tar.extractfile("it").read() == b"content"
    link.close()


def test_answers_find_their_calls_whatever_their_order(link: HostLink) -> None:
    futures = [link.call("any", number=i, timeout_s=20) for i in range(100)]
    assert [one.result(timeout=20)["got"]["number"] for one in futures] == list(range(100))


def test_a_coroutine_can_await_a_call(link: HostLink) -> None:
    async def ask() -> dict[str, Any]:
        return await asyncio.wrap_future(link.call("any", word="ümlaut\n"))

    assert asyncio.run(ask())["got"]["word"] == "ümlaut\n"


def test_raw_bytes_come_with_their_answer(link: HostLink) -> None:
    got = answer(link, "read", run="t1.1.1", stream="rank0.log", offset=0, length=5)
    assert (got["data"], got["size"]) == (b"a\nb\nc", 99)


def test_refusals_become_errors_of_their_own(link: HostLink) -> None:
    with pytest.raises(SlotBusyError, match="slot_busy") as busy:
        answer(link, "refuse", code="slot_busy")
    assert busy.value.details["slot"] == 3
    with pytest.raises(HostLostError):
        answer(link, "refuse", code="lost")
    with pytest.raises(HostRefusedError) as refused:
        answer(link, "refuse", code="need")
    assert (refused.value.code, refused.value.details["missing"]) == ("need", ["abc"])
    assert "\x1b" not in str(refused.value)
    assert link.alive


def test_a_call_without_an_answer_ends_in_time_and_the_link_goes_on(link: HostLink) -> None:
    with pytest.raises(HostUnreachableError, match="did not answer 'mute' in time"):
        link.call("mute", timeout_s=0.2).result(timeout=10)
    assert answer(link, "any")["got"] == {"cmd": "any"}


def test_a_cancelled_call_harms_nobody(link: HostLink) -> None:
    assert link.call("any").cancel()
    assert answer(link, "any")["got"] == {"cmd": "any"}


def test_a_command_that_is_too_long_is_the_users_error(link: HostLink) -> None:
    with pytest.raises(UserError, match="a host accepts"):
        answer(link, "prepare", plan="x" * 9_000_000)
    assert answer(link, "any", plan="x" * 5_000_000)["got"]["plan"] == "x" * 5_000_000


def test_commands_with_a_limit_of_their_own_get_it(link: HostLink) -> None:
    assert link.call("net_connect", timeout_s=12).result(20)["got"]["timeout_s"] == 10
    assert link.call("fence", run="t1.1.1", wait_s=0.5, timeout_s=0.1).result(20)["got"]["wait_s"] == 0.5


def test_the_clocks_of_a_host_are_measured_by_round_trips(link: HostLink) -> None:
    link.measure_clock(timeout_s=20)
    assert abs(link.clock_offset_s - 100) <= link.clock_uncertainty_s + 0.01
    assert 0 < link.clock_uncertainty_s < 5


@pytest.mark.parametrize(
    ("cmd", "args", "words"),
    [
        ("garbage", {}, r"not valid JSON .*: \\x1b\[31mTraceback"),
        ("raw", {"text": "[1]\n"}, "not a JSON object"),
        ("raw", {"text": '{"t": "news"}\n'}, "unknown kind 'news'"),
        ("raw", {"text": '{"t": "beat", "boottime_s": "x", "runs": []}\n'}, "beat with wrong fields"),
        ("raw", {"text": '{"t": "gone", "run": 3, "reason": "x"}\n'}, "a frame with wrong fields"),
        ("raw", {"text": '{"t": "gone", "run": "t1.1.1"}\n'}, "a frame with wrong fields"),
        ("raw", {"text": '{"t": "data", "run": 3, "stream": "x", "bytes": 0}\n'}, "wrong fields"),
        ("raw", {"text": '{"t": "data", "run": "r", "stream": "x", "bytes": 99999999999}\n'}, "raw bytes beyond"),
        ("raw", {"text": '{"t": "data", "bytes": -1}\n'}, "raw bytes beyond"),
        ("raw", {"text": '{"re": null, "ok": false, "code": "protocol", "message": "too long"}\n'}, "too long"),
        ("raw", {"text": '{"re": "x", "ok": true, "loss": NaN}\n'}, "not a JSON number"),
        ("raw", {"text": '{"re": "x", "ok": true}\n'}, "answer to an unknown command"),
        ("raw", {"text": "[" * 100_000 + "\n"}, "nested 100,000 levels deep"),
        ("flood", {}, "a line of more than 8388608 bytes"),
    ],
)
def test_a_breach_of_the_protocol_ends_the_link_and_is_quoted(
    tmp_path: Path, cmd: str, args: dict[str, Any], words: str
) -> None:
    link = connect(LocalTransport(home=tmp_path))
    with pytest.raises(HostProtocolError, match=words) as raised:
        answer(link, cmd, **args)
    assert not link.alive
    assert len(str(raised.value)) < 500
    assert "\x1b" not in str(raised.value)
    with pytest.raises(HostProtocolError):
        link.call("any").result(timeout=1)
    link.close()


def test_frames_reach_the_sink_of_their_run_with_their_bytes(link: HostLink) -> None:
    frames: Queue[Frame] = Queue()
    link.subscribe("t1.1.1", {"rank0.log": 7}, frames.put).result(timeout=20)
    sent = [
        {"t": "data", "run": "t1.1.1", "stream": "rank0.log", "offset": 7, "raw": "line\n{x"},
        {"t": "data", "run": "t2.1.2", "stream": "rank0.log", "offset": 0, "raw": "of another run"},
        {"t": "gap", "run": "t1.1.1", "stream": "rank0.log", "offset": 14, "skip_bytes": 100, "reason": "cap"},
        {"t": "data", "run": "t1.1.1", "stream": "rank0.log", "offset": 0, "epoch": 1, "raw": "anew"},
    ]
    answer(link, "frames", frames=sent)
    first, gap, anew = frame(frames), frame(frames), frame(frames)
    assert (first.data, first.offset, first.end, first.epoch) == (b"line\n{x", 7, 14, 0)
    assert (gap.t, gap.end, gap.reason) == ("gap", 114, "cap")
    assert (anew.data, anew.epoch) == (b"anew", 1)
    link.unsubscribe("t1.1.1")
    answer(link, "frames", frames=[{"t": "data", "run": "t1.1.1", "stream": "rank0.log", "offset": 0, "raw": "late"}])
    assert frames.empty()


def test_a_host_that_does_not_wait_for_acknowledgements_is_disconnected_before_it_fills_the_memory(
    link: HostLink,
) -> None:
    frames: Queue[Frame] = Queue()
    link.subscribe("t1.1.1", {}, frames.put).result(timeout=20)
    with pytest.raises(HostProtocolError, match="rank0.log in 33 frames without an acknowledgement"):
        answer(link, "stream", count=24_000, size=65_536)
    assert not link.alive
    taken = [frames.get_nowait() for _ in range(frames.qsize())]
    assert sum(len(one.data) for one in taken) <= WINDOW_BYTES
    assert isinstance(taken[-1].error, HostProtocolError)


def test_a_host_may_send_any_amount_that_is_acknowledged(link: HostLink) -> None:
    seen: list[int] = []

    def take(found: Frame) -> None:
        seen.append(len(found.data))
        link.ack("t1.1.1", str(found.stream), found.end)

    link.subscribe("t1.1.1", {}, take).result(timeout=20)
    link.call("stream", count=200, size=65_536)
    assert answer(link, "any")["got"] == {"cmd": "any"}
    assert sum(seen) == 200 * 65_536
    assert link.alive


def test_an_answer_with_wrong_fields_fails_its_call_and_leaves_the_link(link: HostLink) -> None:
    with pytest.raises(HostProtocolError, match=r"an answer to 'status' with wrong fields, .*\$\.runs"):
        answer(link, "status", runs=1, wrong={"runs": [1]})
    assert link.alive


def test_acknowledgements_and_renewals_are_lines_without_an_id(link: HostLink) -> None:
    frames: Queue[Frame] = Queue()
    link.subscribe("seen", {}, frames.put).result(timeout=20)
    link.ack("t1.1.1", "rank0.log", 55)
    link.renew(["t1.1.1"], 12.5, 900)
    lines = [frame(frames).data, frame(frames).data]
    assert lines[0] == b'{"cmd":"ack","run":"t1.1.1","stream":"rank0.log","offset":55}\n'
    assert lines[1] == b'{"cmd":"renew","boottime_s":12.5,"runs":["t1.1.1"],"orphan_timeout_s":900}\n'


def test_a_sink_that_fails_does_not_stop_the_others(link: HostLink, caplog: pytest.LogCaptureFixture) -> None:
    frames: Queue[Frame] = Queue()

    def broken(frame: Frame) -> None:
        raise RuntimeError("a sink with a bug")

    link.subscribe("a", {}, broken).result(timeout=20)
    link.subscribe("b", {}, frames.put).result(timeout=20)
    answer(link, "frames", frames=[{"t": "data", "run": r, "stream": "s", "offset": 0, "raw": "x"} for r in "ab"])
    assert frame(frames).data == b"x"
    assert "could not be handled" in caplog.text


def test_beats_go_to_their_handler(link: HostLink) -> None:
    beats: Queue[dict[str, Any]] = Queue()
    link.on_beat = beats.put
    answer(link, "frames", frames=[{"t": "beat", "boottime_s": 12.5, "runs": ["t1.1.1"]}])
    assert beats.get(timeout=20) == {"boottime_s": 12.5, "runs": ["t1.1.1"]}


@pytest.mark.parametrize("code", ["os_error", "internal"])
def test_a_fault_that_a_host_answers_again_and_again_ends_the_channel(tmp_path: Path, code: str) -> None:
    link = connect(LocalTransport(home=tmp_path))
    for _ in range(MOST_FAULTS - 1):
        with pytest.raises(HostRefusedError):
            answer(link, "refuse", code=code)
    with pytest.raises(HostRefusedError):
        answer(link, "refuse", code="tombstone")
    for _ in range(MOST_FAULTS):
        assert link.alive, "another answer came between"
        with pytest.raises(HostRefusedError):
            answer(link, "refuse", code=code)
    with pytest.raises(HostUnreachableError, match=rf"refused 'refuse' \({code}\).* answered so 3 times in a row"):
        answer(link, "any")
    assert not link.alive
    link.close()


def test_a_run_whose_files_a_host_has_lost_is_lost_for_its_follower_and_no_other(link: HostLink) -> None:
    frames, others = Queue[Frame](), Queue[Frame]()
    link.subscribe("t1.1.1", {}, frames.put).result(timeout=20)
    link.subscribe("t2.1.2", {}, others.put).result(timeout=20)
    answer(link, "frames", frames=[{"t": "gone", "run": "t1.1.1", "reason": "its folder \x1b was removed"}])
    lost = frame(frames)
    assert (lost.t, type(lost.error)) == ("lost", HostLostError)
    assert str(lost.error).endswith("has lost run t1.1.1: its folder \\x1b was removed.")
    assert others.empty()
    assert link.alive


def test_a_channel_that_ends_fails_its_calls_and_tells_its_sinks(link: HostLink) -> None:
    frames: Queue[Frame] = Queue()
    link.subscribe("t1.1.1", {}, frames.put).result(timeout=20)
    waiting = link.call("mute", timeout_s=60)
    with pytest.raises(HostUnreachableError, match="ended"):
        answer(link, "leave")
    with pytest.raises(HostUnreachableError):
        waiting.result(timeout=5)
    lost = frame(frames)
    assert (lost.t, lost.run) == ("lost", "t1.1.1")
    assert isinstance(lost.error, HostUnreachableError)
    assert not link.alive
    with pytest.raises(HostUnreachableError):
        link.subscribe("t1.1.1", {}, frames.put).result(timeout=5)
    assert frames.empty()


def test_the_last_words_of_a_dead_channel_are_shown(tmp_path: Path) -> None:
    link = connect(LocalTransport(home=tmp_path))
    with pytest.raises(HostUnreachableError, match="the host lost power"):
        answer(link, "leave")
    link.close()


def test_the_last_words_of_a_channel_that_refuses_input_are_shown(tmp_path: Path) -> None:
    link = connect(LocalTransport(home=tmp_path))
    leave = link.call("leave", timeout_s=60, deaf_s=0.3)
    while not wait([leave], timeout=0.05).done:
        link.call("mute")
    with pytest.raises(HostUnreachableError, match="the host lost power"):
        leave.result()
    link.close()


def test_closing_a_link_fails_its_calls_and_ends_its_threads(link: HostLink) -> None:
    waiting = link.call("mute", timeout_s=60)
    link.close()
    link.close()
    with pytest.raises(HostUnreachableError, match="closed on this side"):
        waiting.result(timeout=5)
    mine = [thread for thread in threading.enumerate() if thread.name.endswith(link.host)]
    assert not [thread for thread in mine if thread.name.startswith(("dtrain-read", "dtrain-write"))]


def test_a_silent_host_counts_as_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "SILENCE_S", 0.3)
    link = connect(LocalTransport(home=tmp_path))
    with pytest.raises(HostUnreachableError, match="silent for"):
        link.call("mute", timeout_s=60).result(timeout=10)
    link.close()


def test_archives_and_files_travel_beside_the_channel(link: HostLink) -> None:
    content = os.urandom(2_000_000)
    link.send_archive("payloads", hashlib.sha256(content).hexdigest(), content)
    with pytest.raises(HostRefusedError, match="another digest") as refused:
        link.send_archive("payloads", "0" * 64, content)
    assert refused.value.code == "digest"
    fetched = fetch(link, f"payloads-{hashlib.sha256(content).hexdigest()}")
    with tarfile.open(fileobj=io.BytesIO(fetched)) as tar:
        assert tar.extractfile("it").read() == content
    with pytest.raises(HostRefusedError, match="no such path"):
        fetch(link, "nothing-here")
    tar_bytes = io.BytesIO()
    with tarfile.open(fileobj=tar_bytes, mode="w") as tar:
        member = tarfile.TarInfo("note")
        member.size = 2
        tar.addfile(member, io.BytesIO(b"hi"))
    with link.putting("t1.1.1", "below") as outgoing:
        outgoing.write(tar_bytes.getvalue())
    assert b"hi" in fetch(link, "below")
