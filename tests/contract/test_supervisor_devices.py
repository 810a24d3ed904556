"""Processes on the GPUs of a run, as listed by the driver, in the answer to a fence."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.accounts import uids
from tests.support.supervisor_host import SLEEP, Channel, Host, is_alive, make_plan, start, until

RUN = "t1.1.7"
STRANGER = uids()[1]


class Device:
    """A host with one GPU, and the processes that use it."""

    def __init__(self, host: Host, library: Path) -> None:
        self.host, self.users = host, host.root / "users"
        folder = host.root / "nvml"
        folder.mkdir()
        (folder / "libnvidia-ml.so.1").write_bytes((library / "libnvidia-ml.so.1").read_bytes())
        host.env |= {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML_PROCESSES": str(self.users)}

    def use(self, *pids: int) -> None:
        self.users.write_text(" ".join(map(str, pids)))

    def fence(self, channel: Channel) -> dict[str, Any]:
        return channel.call("fence", run=RUN, token=7, wait_s=0.1)

    def plan(self, run: str, *argv: str) -> dict[str, Any]:
        return make_plan(run, *argv, cpu_slots=False, devices=["GPU-fake"])


@pytest.fixture
def device(account: Callable[..., Host], library: Path) -> Device:
    return Device(account(), library)


@contextmanager
def program(**account: Any) -> Iterator[int]:
    """Run a program that no run has started."""
    process = subprocess.Popen(["sleep", "1000"], **account)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def ended(device: Device) -> Channel:
    """Return the channel of a run that has ended."""
    channel = device.host.channel()
    start(channel, device.plan(RUN, "true"))
    channel.wait_event(RUN, "ended")
    parents = device.host.supervisor_pid(RUN), device.host.reaper_pid(RUN)
    until(lambda: not any(map(is_alive, parents)), "the end of supervisor and reaper")
    return channel


def test_a_process_of_the_same_account_on_the_device_withholds_clear_until_it_has_left(device: Device) -> None:
    channel = ended(device)
    with program(**device.host.account) as pid:
        device.use(pid)
        found = device.fence(channel)
        assert found["clear"] is False
        assert [(one["pid"], one["command"]) for one in found["survivors"]] == [(pid, "sleep 1000")]
        device.use()
        assert device.fence(channel)["clear"] is True


def test_a_process_of_another_account_is_told_and_withholds_nothing(device: Device) -> None:
    channel = ended(device)
    with program(user=STRANGER, group=STRANGER, extra_groups=()) as pid:
        device.use(pid)
        found = device.fence(channel)
        assert found["clear"] is True
        assert [(one["slot"], one["pid"], one["user"]) for one in found["foreign"]] == [(0, pid, str(STRANGER))]
        asked = [{"slot": 0, "device": "GPU-fake"}]
        words = f"process {pid} (sleep 1000) of user {STRANGER}"
        assert channel.call("status", slots=asked)["slots"]["0"]["held_by"] == words
        device.use()
        assert channel.call("status", slots=asked)["slots"]["0"]["held_by"] is None


def test_a_process_that_is_older_than_the_run_is_none_of_its_own(device: Device) -> None:
    with program(**device.host.account) as pid:
        channel = ended(device)
        device.use(pid)
        found = device.fence(channel)
        assert found["clear"] is True
        assert [one["pid"] for one in found["foreign"]] == [pid]


def test_the_ranks_of_the_next_run_on_the_device_are_no_strangers(device: Device) -> None:
    channel = ended(device)
    start(channel, device.plan("t2.1.8", *SLEEP))
    until(lambda: device.host.processes("t2.1.8"), "the rank of the next run")
    device.use(*device.host.processes("t2.1.8"))
    found = device.fence(channel)
    assert (found["clear"], "foreign" in found) == (True, False)


def test_a_device_whose_processes_are_no_longer_listed_withholds_clear_until_they_are(device: Device) -> None:
    channel = ended(device)
    asked = [{"slot": 0, "device": "GPU-fake"}]
    assert channel.call("preflight", slots=asked)["foreign"] == []
    device.users.write_text("lost")
    found = device.fence(channel)
    assert (found["clear"], found["survivors"], found["busy_slots"]) == (False, [], [])
    assert found["unlisted"][0].startswith("GPU-fake: the driver no longer lists its processes.")
    assert channel.call("status", slots=asked)["slots"]["0"]["held_by"] == found["unlisted"][0]
    device.use()
    assert device.fence(channel)["clear"] is True
    assert channel.call("status", slots=asked)["slots"]["0"]["held_by"] is None


def test_preflight_names_each_device_that_the_driver_does_not_list(device: Device) -> None:
    asked = [{"slot": 0, "device": "GPU-fake"}, {"slot": 1, "device": "GPU-gone"}, {"slot": 2, "device": None}]
    found = device.host.channel().call("preflight", slots=asked)
    assert [words.partition(". ")[0] for words in found["problems"]] == ["GPU-gone: the driver does not list this GPU"]
    assert found["foreign"] == []


def test_preflight_names_each_device_of_a_host_that_has_lost_its_driver(host: Host) -> None:
    # An empty file in place of the library, also on a machine that has a driver.
    (host.root / "libnvidia-ml.so.1").touch()
    host.env |= {"LD_LIBRARY_PATH": str(host.root)}
    found = host.channel().call("preflight", slots=[{"slot": 0, "device": "GPU-fake"}])
    assert [words.partition(": ")[0] for words in found["problems"]] == ["GPU-fake"]


def test_preflight_names_a_device_whose_processes_are_no_longer_listed(device: Device) -> None:
    channel, asked = device.host.channel(), [{"slot": 0, "device": "GPU-fake"}]
    assert channel.call("preflight", slots=asked)["problems"] == []
    device.users.write_text("lost")
    (words,) = channel.call("preflight", slots=asked)["problems"]
    assert words.startswith("GPU-fake: the driver no longer lists its processes.")


def test_a_device_whose_processes_were_never_listed_withholds_nothing(device: Device) -> None:
    channel = ended(device)
    device.users.write_text("lost")
    assert device.fence(channel)["clear"] is True


def test_a_process_behind_a_thousand_others_on_the_device_withholds_clear(device: Device) -> None:
    channel = ended(device)
    with program(**device.host.account) as pid:
        # The others are numbers of no process that this host can see.
        device.use(*range(2**31, 2**31 + 1024), pid)
        found = device.fence(channel)
        assert (found["clear"], [one["pid"] for one in found["survivors"]]) == (False, [pid])


# Ranks on each other's devices, and divided GPUs.


TWO = ("GPU-a", "GPU-b")


@pytest.fixture
def pair(device: Device) -> Device:
    """A host with two GPUs."""
    device.host.env |= {"FAKE_NVML_DEVICES": ",".join(TWO)}
    return device


def use(device: Device, *, a: str = "", b: str = "") -> None:
    """Write the processes on each GPU: numbers, each with its MiB behind a colon."""
    device.users.with_name(f"{device.users.name}.GPU-b").write_text(b)
    device.users.write_text(a)


def pids_of_ranks(device: Device) -> list[int]:
    document = json.loads((device.host.run_dir(RUN) / "state.json").read_text())
    return [rank["pid"] for rank in document["ranks"]]


def two_ranks(*argv: str, devices: Sequence[str] = TWO, interval_s: float = 0.1) -> dict[str, Any]:
    return make_plan(RUN, *argv, ranks=2, devices=devices, cpu_slots=False, sampling_interval_s=interval_s)


def warnings_of(channel: Channel) -> list[str]:
    """End the run, and return the warnings of its supervisor."""
    channel.call("stop", run=RUN, grace_s=5)
    channel.wait_event(RUN, "ended")
    return [event["text"] for event in channel.events(RUN) if event["kind"] == "warning"]


@pytest.mark.parametrize("interval_s", [0.1, 0.0], ids=["with samples", "without"])
def test_a_rank_on_the_device_of_another_rank_is_named_once(pair: Device, interval_s: float) -> None:
    channel = pair.host.channel()
    start(channel, two_ranks(*SLEEP, interval_s=interval_s))
    first, second = pids_of_ranks(pair)
    use(pair, a=f"{first}:900 {second}:480", b=f"{second}:7000")
    channel.wait(lambda: channel.event(RUN, "warning"))
    assert warnings_of(channel) == [
        "rank 1 also holds 480 MiB on the device of rank 0: call "
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything is moved to a GPU'
    ]


def test_the_process_that_a_rank_starts_counts_as_the_rank(pair: Device) -> None:
    channel = pair.host.channel()
    start(channel, two_ranks("sh", "-c", "sleep 1000 & wait"))
    children = Path(f"/proc/{pids_of_ranks(pair)[0]}/task/{pids_of_ranks(pair)[0]}/children")
    child = until(lambda: children.read_text().strip(), "the child of rank 0")
    use(pair, b=f"{child}:512")
    channel.wait(lambda: channel.event(RUN, "warning"))
    assert warnings_of(channel)[0].startswith("rank 0 holds 512 MiB on the device of rank 1: ")


def test_ranks_on_their_own_devices_and_foreign_processes_are_not_named(pair: Device) -> None:
    channel = pair.host.channel()
    with program() as foreign:
        start(channel, two_ranks(*SLEEP))
        first, second = pids_of_ranks(pair)
        use(pair, a=f"{first} {foreign}", b=f"{second} {foreign}")
        samples = pair.host.run_dir(RUN) / "samples"
        # Beyond the first check.
        until(lambda: samples.exists() and len(samples.read_bytes().splitlines()) > 15, "samples of 1.5 s")
        assert warnings_of(channel) == []


def test_the_instances_of_a_divided_gpu_are_probed_in_its_place(device: Device) -> None:
    device.host.env |= {"FAKE_NVML_DEVICES": "GPU-a,MIG-1,MIG-2,GPU-b"}
    found = device.host.channel().call("probe")["gpus"]
    assert [(one["index"], one["uuid"], one["name"]) for one in found] == [
        (0, "MIG-1", "Fake MIG 1g.10gb"), (0, "MIG-2", "Fake MIG 1g.10gb"), (1, "GPU-b", "Fake"),
    ]  # fmt: skip
    assert [one["memory_bytes"] >> 30 for one in found] == [10, 10, 80]


def test_an_instance_is_a_device_like_another(device: Device) -> None:
    device.host.env |= {"FAKE_NVML_DEVICES": "GPU-a,MIG-1"}
    channel = device.host.channel()
    assert channel.call("preflight", slots=[{"slot": 0, "device": "MIG-1"}])["problems"] == []
    with program() as pid:
        device.users.with_name(f"{device.users.name}.MIG-1").write_text(str(pid))
        found = channel.call("preflight", slots=[{"slot": 0, "device": "MIG-1"}])["foreign"]
    assert [(one["device"], one["pid"]) for one in found] == [("MIG-1", pid)]
