"""Measurements of a supervisor on its host while ranks run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.supervisor.files.events import encode_event
from airflow_provider_dtrain.supervisor.files.segments import read_segments
from airflow_provider_dtrain.supervisor.run.sampler import Sampler
from testbed.cpu_quota import CpuQuota, controller_folder
from tests.support.supervisor_host import SLEEP, Channel, Host, Refusal, is_alive, make_plan, read_samples, start, until

RUN = "t1.1.7"
#: Writes and sends what the test can find again in the figures.
BUSY = (
    "python", "-c",
    "import os, socket, time\n"
    "end = time.monotonic() + 60\n"
    "while time.monotonic() < end: sum(range(10000))\n",
)  # fmt: skip


def plan(*argv: str, **changes: Any) -> dict[str, Any]:
    return make_plan(RUN, *argv, **{"sampling_interval_s": 0.1, **changes})


def samples(host: Host, kind: str = "system") -> list[dict[str, Any]]:
    path = host.run_dir(RUN) / "samples"
    data = path.read_bytes() if path.exists() else b""
    return [line for line in read_samples(data) if line["kind"] == kind]


def children(host: Host, run: str = RUN) -> list[int]:
    supervisor = host.supervisor_pid(run)
    return [int(pid) for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()]


def sampler_of(host: Host) -> int:
    """Return the pid of the sampler, the only child of the supervisor that is not a rank, after its first sample."""
    until(lambda: samples(host), "a sample")
    (found,) = set(children(host)) - set(host.processes(RUN))
    return found


def stop(channel: Channel) -> str:
    channel.call("stop", run=RUN, grace_s=5)
    return str(channel.wait_event(RUN, "ended")["reason"])


def test_the_host_is_measured_while_any_program_runs(host: Host) -> None:
    channel = host.channel()
    start(channel, plan(*BUSY))
    until(lambda: len(samples(host)) >= 5, "five samples")
    found = samples(host)
    assert [line["seq"] for line in found] == list(range(1, len(found) + 1))
    for line in found:
        assert {"cpu_util", "memory_available", "net_sent", "net_recv"} <= set(line)
        assert 0 <= line["cpu_util"] <= 100
        assert "gpus" not in line
    assert max(line["cpu_util"] for line in found) > 100 / (os.cpu_count() or 1) / 2, "one CPU was busy all the time"
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 0 < found[0]["memory_available"] <= total
    gaps = [later["at"] - sooner["at"] for sooner, later in zip(found, found[1:], strict=False)]
    assert min(gaps) >= 0.04
    answer = channel.call("read", run=RUN, stream="samples", offset=0, length=1 << 20)
    assert list(read_samples(answer["raw"]))[1:6] == found[:5]
    assert stop(channel) == "stopped"


def test_nothing_is_measured_when_the_plan_does_not_ask_for_it(host: Host) -> None:
    channel = host.channel()
    start(channel, plan("python", "-c", "import time; time.sleep(0.5)", sampling_interval_s=0))
    assert channel.wait_event(RUN, "ended")["reason"] == "completed"
    assert not (host.run_dir(RUN) / "samples").exists()


def gpus_of(host: Host) -> list[dict[str, Any]]:
    return [gpu for line in samples(host) for gpu in line.get("gpus", ())]


def test_the_gpus_of_the_run_are_measured(host: Host, library: Path, tmp_path: Path) -> None:
    users = tmp_path / "users"
    host.env.update(LD_LIBRARY_PATH=str(library), FAKE_NVML_REASONS="0x24", FAKE_NVML_PROCESSES=str(users))
    channel = host.channel()
    start(channel, plan("sh", "-c", f'echo "$$ {os.getpid()}" > {users}; exec sleep 1000', devices=["GPU-fake"]))
    until(lambda: any("gpus" in line for line in samples(host)), "a sample with a GPU")
    until(lambda: [one for one in gpus_of(host) if "gpu_clock" in one], "a sample with the facts of the GPU")
    load = {"uuid": "GPU-fake", "gpu_util": 87, "gpu_free_memory": 30 << 30}
    facts = {
        "gpu_clock": 1215, "gpu_temperature": 84, "gpu_power": 312.5, "gpu_thermal_slowdown": 100,
        "gpu_power_slowdown": 100, "gpu_hardware_slowdown": 0, "gpu_ecc_errors": 2, "gpu_remapped_rows": 4,
        "gpu_other_processes": 1,
    }  # fmt: skip
    until(lambda: len(gpus_of(host)) >= 5, "further samples")
    found = gpus_of(host)
    assert [one for one in found if "gpu_clock" in one] == [{**load, **facts}], "facts are read every few seconds"
    assert all(one == load for one in found if "gpu_clock" not in one)
    assert stop(channel) == "stopped"


@pytest.mark.skipif(controller_folder() is None, reason="this account may not create cgroups with a CPU quota")
def test_the_rank_with_a_cpu_quota_is_seen(host: Host) -> None:
    channel = host.channel()
    with CpuQuota(0.03) as quota:
        start(channel, plan(*BUSY, ranks=2))
        pids = {rank["rank"]: rank["pid"] for rank in channel.wait_event(RUN, "started")["ranks"]}
        quota.add(pids[1])
        facts = "the facts of both ranks while one has a quota"
        until(lambda: any(one.get("cpu_throttled", 0) > 50 for one in ranks_of(host)), facts, 30)
        found = ranks_of(host)
        assert {one["rank"] for one in found} == {0, 1}
        assert {one["rank"] for one in found if "cpu_throttled" in one} == {1}
        assert all(0 <= one["cpu_wait"] <= 100 for one in found)
    assert stop(channel) == "stopped"


def ranks_of(host: Host) -> list[dict[str, Any]]:
    return [rank for line in samples(host) for rank in line.get("ranks", ())]


@pytest.mark.parametrize("mood", ["hang", "crash"])
def test_a_driver_that_hangs_or_crashes_neither_stops_the_run_nor_its_end(host: Host, library: Path, mood: str) -> None:
    host.env.update(LD_LIBRARY_PATH=str(library), FAKE_NVML=mood)
    channel = host.channel()
    start(channel, plan(*SLEEP, devices=["GPU-fake"]))
    if mood == "hang":
        until(lambda: len(samples(host)) >= 3, "samples of the rest")
        assert not any("gpus" in line for line in samples(host))
    else:
        log = host.run_dir(RUN) / "supervisor.log"
        until(lambda: len(children(host)) == 1 and (host.run_dir(RUN) / "samples").exists(), "the end of the sampler")
        assert log.exists()
    # A process that has just been forked is not listed yet.
    until(lambda: len(host.processes(RUN)) == 1, "the rank, which goes on")
    assert stop(channel) == "stopped"


def test_the_sampler_ends_with_the_run_and_with_its_supervisor(host: Host) -> None:
    channel = host.channel()
    start(channel, plan(*SLEEP))
    first = sampler_of(host)
    assert stop(channel) == "stopped"
    assert not is_alive(first)
    other = "t1.2.8"
    start(channel, make_plan(other, *SLEEP, sampling_interval_s=0.1))
    until(lambda: len(children(host, other)) == 2, "rank and sampler")
    pids, supervisor = children(host, other), host.supervisor_pid(other)
    os.kill(supervisor, 9)
    until(lambda: not any(map(is_alive, pids)), "the end of rank and sampler")


def test_the_sampler_holds_no_lock(host: Host) -> None:
    channel = host.channel()
    start(channel, plan(*SLEEP))
    held = [os.readlink(entry) for entry in Path(f"/proc/{sampler_of(host)}/fd").iterdir()]
    assert not any(path.endswith("lock") for path in held), held
    assert stop(channel) == "stopped"


def test_a_full_file_drops_its_older_half_and_keeps_the_numbers_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "samples"
    limit = 64 << 10
    sampler = Sampler(str(path), 1.0, [], limit)
    offset, read = 0, b""
    for number in range(2000):
        sampler.file.write("system", {"cpu_util": number * 1.0, "filler": "x" * 200})
        if number % 30 == 0:
            # Each answer ends with its segment.
            for _ in range(2):
                start, data, end = read_segments(str(path), offset, 1 << 20)
                assert start == offset
                offset, read = offset + len(data), read + data
            assert offset == end
        assert sum(one.stat().st_size for one in tmp_path.iterdir()) <= limit
    lines = list(read_samples(read))
    assert [int(line["cpu_util"]) for line in lines if line["kind"] == "system"] == list(range(1981))
    bases = [line["base"] for line in lines if line["kind"] == "segment"]
    marks = [line for line in read.split(b"\n") if b'"segment"' in line]
    assert len(bases) > 3
    assert bases == [read.find(mark) for mark in marks]
    first, data, end = read_segments(str(path), 5, 100)
    assert first > end - limit
    assert len(data) == 100
    assert data == read[first : first + 100]
    again = Sampler(str(path), 1.0, [], limit)
    again.file.write("system", {"cpu_util": 1.0})
    assert read_segments(str(path), end, 1 << 20)[0] == end


def test_a_file_of_the_version_before_begins_at_byte_0(tmp_path: Path) -> None:
    path = tmp_path / "samples"
    line = encode_event({"seq": 1, "at": 1.0, "kind": "system", "cpu_util": 5.0})
    path.write_bytes(line)
    assert read_segments(str(path), 0, 1000) == (0, line, len(line))
    assert read_segments(str(path), len(line), 1000) == (len(line), b"", len(line))


@pytest.mark.parametrize("base", [-1, 2**63, "7", True, None])
def test_a_segment_with_a_senseless_base_begins_at_byte_0(tmp_path: Path, base: object) -> None:
    path = tmp_path / "timings"
    path.write_bytes(encode_event({"kind": "segment", "base": base}))
    assert read_segments(str(path), 0, 10)[0] == 0


def test_what_is_no_regular_file_is_empty(tmp_path: Path) -> None:
    for name in ("link", "pipe", "folder", "absent"):
        path = tmp_path / name
        if name == "link":
            path.symlink_to("/proc/version")
        elif name == "pipe":
            os.mkfifo(path)
        elif name == "folder":
            path.mkdir()
        assert read_segments(str(path), 7, 10) == (7, b"", 0)


def test_measurements_are_sent_from_a_place_on_within_a_limit(host: Host) -> None:
    channel = host.channel()
    start(channel, plan(*SLEEP))
    until(lambda: len(samples(host)) >= 3, "three samples")
    streams = {"samples": 0, "rank0.timings": 5, "rank7.timings": 0}
    answer = channel.call("telemetry", run=RUN, streams=streams, most_bytes=1 << 20)
    (system, *ranks) = answer["parts"]
    assert ranks == [
        {"stream": "rank0.timings", "offset": 5, "bytes": 0, "end": 0},
        {"stream": "rank7.timings", "offset": 0, "bytes": 0, "end": 0},
    ]
    assert system == {"stream": "samples", "offset": 0, "bytes": len(answer["raw"]), "end": len(answer["raw"])}
    assert [line["kind"] for line in read_samples(answer["raw"])][:3] == ["segment", "system", "system"]
    (line,) = [line for line in read_samples(answer["raw"]) if line["seq"] == 1]
    assert abs(line["boot"] - time.clock_gettime(time.CLOCK_BOOTTIME)) < 60
    part = channel.call("telemetry", run=RUN, streams={"samples": 7}, most_bytes=20)
    assert (part["parts"][0]["offset"], part["raw"]) == (7, answer["raw"][7:27])
    for wrong in ({"../plan.json": 0}, {"rank0.events": 0}, {"samples": -1}):
        with pytest.raises(Refusal, match="bad_plan"):
            channel.call("telemetry", run=RUN, streams=wrong, most_bytes=20)
    with pytest.raises(Refusal, match="unknown_run"):
        channel.call("telemetry", run="t9.9.9", streams={}, most_bytes=20)
    assert stop(channel) == "stopped"


def test_rates_are_per_second_between_two_readings(tmp_path: Path) -> None:
    sampler = Sampler(str(tmp_path / "samples"), 1.0, [])
    before: dict[str, float] = {
        "cpu_all": 1000,
        "cpu_idle": 500,
        "net_sent": 100,
        "disk_iops": 50,
        "disk_read": 1 << 20,
    }
    after: dict[str, float] = {
        "cpu_all": 1400,
        "cpu_idle": 600,
        "net_sent": 4100,
        "disk_iops": 40,
        "disk_read": 3 << 20,
    }
    found = sampler.sample(before, {**after, "memory_available": 7}, 2.0)
    assert found == {
        "cpu_util": 75.0, "memory_available": 7, "net_sent": 2000.0, "disk_iops": 0.0, "disk_read": float(1 << 20),
    }  # fmt: skip


def test_faults_that_the_driver_reports_are_evidence_of_the_rank_on_that_gpu(
    host: Host, library: Path, tmp_path: Path
) -> None:
    events = tmp_path / "events"
    events.touch()
    devices = ["GPU-0", "GPU-1"]
    host.env.update(LD_LIBRARY_PATH=str(library), FAKE_NVML_DEVICES=",".join(devices), FAKE_NVML_EVENTS=str(events))
    channel = host.channel()
    # The second rank fails after the driver has reported the fault of its GPU.
    wait = "import os, time\nwhile not os.path.exists('../device_faults'): time.sleep(0.05)\ntime.sleep(0.2)\n"
    program = f"{wait}raise SystemExit(int(os.environ['RANK']) and 3)"
    start(channel, plan("python", "-c", program, ranks=2, devices=devices))
    # Types: 8 is an Xid error, 2 a double-bit error of the memory.
    events.write_text("1 8 79\n1 2 0\n")

    def end() -> Any:
        return next((one for one in channel.events(RUN) if one["kind"] == "exit" and one["rank"] == 1), None)

    found = channel.wait(end)
    assert found["exit_code"] == 3
    assert [(one["uuid"], one["xid"]) for one in found["facts"]["faults"]] == [("GPU-1", 79), ("GPU-1", 0)]
