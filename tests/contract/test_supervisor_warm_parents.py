"""Warm parents: what they import, whom they serve, when they end, and what ranks do without one."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_dtrain.hosts.payload import library
from tests.support.supervisor_host import ROLE, Host, Refusal, is_alive, make_plan, start, until
from tests.support.warm_launches import WARM, Launches, line, parents, uses

TRAIN = """
import random, sys
import numpy, torch
import torch.distributed as dist
print("FREE", random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed())
dist.init_process_group("gloo")
torch.manual_seed(7)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(5):
    batch = torch.rand(64, 16) + dist.get_rank()
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
weights = torch.cat([p.flatten() for p in model.parameters()])
print("BITS", [value.hex() for value in weights[:9].tolist()], loss.item().hex())
print("THREADS", torch.get_num_threads(), torch.get_num_interop_threads(), numpy.show_config is not None)
dist.destroy_process_group()
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    found = Host(tmp_path / "host")
    found.warm_starts = False
    yield found
    found.clean()


def record_of(host: Host) -> Path:
    return next((host.state_dir / "warm").glob("*.json"))


def test_a_forked_training_has_the_same_bits_and_random_state_of_its_own(host: Host) -> None:
    launches = Launches(host, {"train.py": TRAIN})
    executed = launches.run(ranks=2)
    bare, warm, again = (launches.run(ranks=2) for _ in range(3))
    assert [one["forked"] for one in (executed, bare, warm, again)] == [False, True, True, True]
    assert [one["reason"] for one in (executed, bare, warm, again)] == ["completed"] * 4
    assert uses(parents(host)[0], "libtorch")
    for word in ("BITS", "THREADS"):
        for rank in (0, 1):
            assert {line(one, word, rank) for one in (bare, warm, again)} == {line(executed, word, rank)}
    free = [line(one, "FREE", rank).split() for one in (warm, again) for rank in (0, 1)]
    for values in zip(*(one[1:] for one in free), strict=True):
        assert len(set(values)) == 4


@pytest.mark.nightly
def test_eight_ranks_pay_for_one_import(host: Host) -> None:
    launches = Launches(host, {"train.py": "import sys\nprint('torch' in sys.modules, flush=True)\nimport torch"})
    found = [launches.run(ranks=2 if one < 2 else 8) for one in range(3)]
    assert [one["logs"] for one in found] == [["False\n"] * 2, ["False\n"] * 2, ["True\n"] * 8]


def test_a_launch_of_other_code_or_variables_or_limits_has_a_parent_of_its_own(host: Host) -> None:
    launches = Launches(host, {"train.py": "print(1)"})
    launches.run()
    launches.run()
    first = parents(host)
    assert len(first) == 1
    launches.run()
    assert parents(host) == first
    assert launches.run(env={"OMP_NUM_THREADS": "5"})["why_executed"] is None
    assert len(parents(host)) == 2
    other = Launches(host, {"train.py": "print(2)"})
    other.count = 10
    first = other.run()
    assert first["why_executed"] == "the first launch of this code on this host"
    assert len(parents(host)) == 2
    assert other.run()["forked"] is True
    assert len(parents(host)) == 3


def test_a_parent_has_no_value_of_a_trial_and_no_secret(host: Host) -> None:
    code = "import os, time\nprint(os.environ['TOKEN'], os.environ['PRIVATE'], os.environ['DTRAIN_HPARAMS'])\n"
    launches = Launches(host, {"train.py": code})
    values = {"secrets": {"TOKEN": "s3cret-value"}, "env": {"PRIVATE": "pr1vate-value"}}
    for _ in range(2):
        found = launches.run(warm={"idle_s": 60, "private": ["PRIVATE"]}, **values)
        assert found["log"].split()[:2] == ["s3cret-value", "pr1vate-value"]
    pid = parents(host)[0]
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for area in Path(f"/proc/{pid}/maps").read_text().splitlines():
            addresses, rights = area.split()[:2]
            begin, end = (int(one, 16) for one in addresses.split("-"))
            if rights.startswith("rw"):
                memory.seek(begin)
                content = memory.read(end - begin)
                for text in (b"s3cret-value", b"pr1vate-value", b"DTRAIN_HPARAMS={"):
                    assert text not in content
    assert found["run"].encode() not in Path(f"/proc/{pid}/environ").read_bytes()


def test_code_that_hides_an_imported_module_is_executed_and_starts_no_second_parent(host: Host) -> None:
    hiding = Launches(host, {"train.py": "import json\nprint(json.MINE)", "json.py": "MINE = 'own module'"})
    hiding.run()
    for number_of_parents in (1, 0):
        found = hiding.run()
        assert found["log"] == "own module\n"
        assert found["why_executed"] == "json.py in the code has the name of a module that is already imported"
        assert len(parents(host)) == number_of_parents
        for pid in parents(host):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not parents(host), "the end of the parent")


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("python", "-O", "train.py"), "the command has options of the interpreter, or no script"),
        (("sh", "train.sh"), "the program is not the Python of its environment"),
        ((sys.executable, "train.py"), "the program is not the Python of its environment"),
    ],
)
def test_other_programs_are_executed(host: Host, argv: tuple[str, ...], reason: str) -> None:
    launches = Launches(host, {"train.py": "print(1)", "train.sh": "echo 1"})
    for _ in range(2):
        found = launches.run(*argv)
        assert (found["log"], found["forked"]) == ("1\n", False)
    assert not parents(host)


def test_names_of_modules_that_a_rank_reports_are_not_trusted(host: Host, tmp_path: Path) -> None:
    """Forged names must lead to no import of the user's code, of other packages, or of programs."""
    evil = tmp_path / "evil"
    evil.mkdir()
    for name in ("evil", "torch_evil", "sympy"):
        (evil / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r})")
    launches = Launches(host, {"train.py": "print(1)", "own.py": f"open({str(tmp_path / 'imported')!r}, 'w')"})
    values = {"env": {"PYTHONPATH": str(evil)}}
    launches.run(**values)
    launches.run(**values)
    names = [
        "evil",
        "own",
        "sympy",
        "torch_evil",
        "os; import evil",
        "../evil",
        "pytest",
        3,
        None,
        "torch.__main__",
        "x" * 9999,
    ]
    document = json.loads(record_of(host).read_text())
    record_of(host).write_text(json.dumps({**document, "modules": names}))
    found = launches.run(**values)
    assert found["forked"] is True
    assert not (tmp_path / "imported").exists()


@pytest.mark.nightly
def test_modules_of_the_code_are_never_imported_by_the_parent(host: Host) -> None:
    code = "import helper, sys\nprint(helper.VALUE, 'torch' in sys.modules)"
    launches = Launches(host, {"train.py": code, "helper.py": "import torch\nVALUE = 4"})
    launches.run()
    launches.run()
    names = json.loads(record_of(host).read_text())["modules"]
    assert "torch" in names
    assert "helper" not in names
    assert launches.run()["log"] == "4 True\n"


def test_ranks_outlive_their_parent_and_later_ones_have_another(host: Host) -> None:
    launches = Launches(host, {"train.py": "import time\nprint('begun', flush=True)\ntime.sleep(1.5)\nprint('ended')"})
    launches.run()
    launches.run()
    first = parents(host)[0]
    run = "t50.1.50"
    start(launches.channel, make_plan(run, "python", "train.py", payload=launches.payload, warm=WARM))
    log = host.run_dir(run) / "rank0" / "log"
    until(lambda: log.read_text() == "begun\n")
    os.kill(first, signal.SIGKILL)
    assert launches.channel.wait_event(run, "ended")["reason"] == "completed"
    assert log.read_text() == "begun\nended\n"
    launches.count = 50
    assert launches.run()["forked"] is True
    assert parents(host)[0] != first


def test_the_checker_of_the_fault_tests_knows_a_parent_as_a_process_without_ranks(host: Host) -> None:
    launches = Launches(host, {"train.py": "print(1)"})
    for _ in range(2):
        launches.run()
    assert ROLE.match(Path(f"/proc/{parents(host)[0]}/cmdline").read_bytes())


def test_a_parent_ends_when_nobody_asks(host: Host) -> None:
    launches = Launches(host, {"train.py": "print(1)"})
    for _ in range(2):
        found = launches.run(warm={"idle_s": 1.0, "private": []})
    assert found["forked"] is True
    pid = json.loads(next((host.state_dir / "warm").glob("*.pid")).read_text())["pid"]
    until(lambda: not is_alive(pid), "the end of the parent", timeout_s=20)


def test_a_parent_ends_with_the_process_of_its_job(host: Host) -> None:
    with subprocess.Popen(["sleep", "600"]) as job:
        start_time = Path(f"/proc/{job.pid}/stat").read_text().rpartition(") ")[2].split()[19]
        host.env["DTRAIN_JOB_PROCESS"] = f"{job.pid} {start_time}"
        launches = Launches(host, {"train.py": "import os\nprint('DTRAIN_JOB_PROCESS' in os.environ)"})
        launches.run()
        assert launches.run()["forked"] is True
        pid = parents(host)[0]
        assert is_alive(pid)
        job.kill()
    until(lambda: not is_alive(pid), "the end of the parent", timeout_s=5)


def test_the_parents_that_were_not_used_for_longest_end_when_there_are_many(host: Host) -> None:
    launches = Launches(host, {"train.py": "print(1)"})
    launches.run()
    assert launches.run(env={"N": "used"})["forked"] is True
    used = parents(host)[0]
    for number in range(5):
        assert launches.run(env={"N": str(number)})["forked"] is True
        assert launches.run(env={"N": "used"})["forked"] is True
    until(lambda: len(parents(host)) <= 4, "the end of the oldest parents")
    assert used in parents(host)


def test_a_parent_that_would_fork_threads_lets_the_ranks_be_executed(host: Host) -> None:
    """A package that starts a thread when it is imported: the parent ends, and none is started for a while."""
    launches = Launches(host, {"train.py": "print(1)"})
    site = Path(host.root / "packages")
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    )
    values = {"env": {"PYTHONPATH": str(site)}}
    for _ in range(3):
        found = launches.run(**values)
        assert (found["log"], found["forked"]) == ("1\n", False)
    assert "bad_since" in json.loads(record_of(host).read_text())
    assert not parents(host)


def test_what_an_import_writes_is_in_the_log_of_each_rank(host: Host) -> None:
    code = "import dtrain_rendezvous\nprint('program')"
    launches = Launches(host, {"train.py": code})
    own = library()
    assert host.command("receive", "libraries", own.digest, stdin=own.content) == (0, b"ok\n")
    launches.run(library=own.digest)
    launches.run(library=own.digest)
    module = next((host.remote_dir / "libraries").glob("*/dtrain_rendezvous.py"))
    module.write_text(module.read_text() + "print('written by the import')\n")
    texts = {launches.run(library=own.digest)["log"] for _ in range(2)}
    assert texts == {"written by the import\nprogram\n"}


def test_other_accounts_get_no_answer(host: Host) -> None:
    launches = Launches(host, {"train.py": "print(1)"})
    launches.run()
    launches.run()
    folder = host.state_dir / "warm"
    assert folder.stat().st_mode & 0o077 == 0
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o077 == 0


def test_a_peer_that_says_nothing_or_nonsense_starts_nothing(host: Host) -> None:
    launches = Launches(host, {"train.py": "print(1)"})
    launches.run()
    launches.run()
    before = os.getcwd()
    os.chdir(host.state_dir / "warm")
    try:
        for content in (b"", b"\x05", b"\xff" * 8, b"\x04\0\0\0\0\0\0\0nope", b"\x02\0\0\0\0\0\0\0{}"):
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(next(Path().glob("*.sock")).name)
                assert peer.recv(5) == b"ready"
                peer.sendall(content)
    finally:
        os.chdir(before)
    assert launches.run()["forked"] is True
    assert len(parents(host)) == 1


def test_the_variables_of_a_setup_script_are_part_of_the_key(host: Host) -> None:
    files = {"train.py": "import os\nprint(os.environ['FROM_SETUP'])", "setup.sh": "export FROM_SETUP=$(cat ~/value)"}
    host.env["HOME"] = str(host.root)
    (host.root / "value").write_text("one")
    launches = Launches(host, files)
    first = [launches.run(setup="setup.sh") for _ in range(2)]
    assert [(one["log"], one["forked"]) for one in first] == [("one\n", False), ("one\n", True)]
    (host.root / "value").write_text("two")
    changed, again = launches.run(setup="setup.sh"), launches.run(setup="setup.sh")
    assert (changed["log"], changed["forked"]) == ("two\n", False)
    assert "have changed" in changed["why_executed"]
    assert (again["log"], again["forked"]) == ("two\n", True)


def test_a_parent_that_is_killed_at_any_moment_starts_no_run_twice(host: Host) -> None:
    """Each launch runs once, or is refused: the process that prepared it is gone, as when it is killed itself."""
    launches = Launches(host, {"train.py": "print('once', flush=True)"})
    launches.run()
    document = json.loads(record_of(host).read_text())
    chance = random.Random(3)
    kills, forked, codes = 0, 0, set[str]()
    for _ in range(15):
        # A parent that died is not tried again for an hour otherwise.
        record_of(host).write_text(json.dumps(document))
        launches.count += 1
        run = f"t{launches.count}.1.{launches.count}"
        plan = make_plan(run, "python", "train.py", payload=launches.payload, warm=WARM)
        key = launches.channel.post("prepare", plan=plan, context={}, secrets={})
        time.sleep(chance.random() * 0.2)
        for pid in parents(host):
            os.kill(pid, signal.SIGKILL)
            kills += 1
        try:
            port = launches.channel.answer(key)["port"]
        except Refusal as refusal:
            codes.add(refusal.code)
            continue
        launches.channel.call("subscribe", run=run, offsets={}, logs="all")
        launches.channel.call("go", run=run, master_addr="127.0.0.1", master_port=port)
        assert launches.channel.wait_event(run, "ended")["reason"] == "completed"
        assert (host.run_dir(run) / "rank0" / "log").read_text() == "once\n"
        forked += launches.channel.wait_event(run, "started")["forked"]
    assert kills > 0
    assert forked > 0
    assert codes <= {"internal"}
