"""A request to stop reaches the program of a rank that can act on it, and none of its helpers."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from tests.support.supervisor_host import Channel, Host, make_plan, start, until

RUN = "t1.1.7"
#: Saves on SIGTERM with two helpers, each of which says when it gets the signal. Arguments: how they start, its name.
TRAIN = """
import multiprocessing, os, signal, sys, time

def helper():
    signal.signal(signal.SIGTERM, lambda *_: print("HELPER WAS ASKED", flush=True))
    print("helper", flush=True)
    while True:
        time.sleep(0.05)

if __name__ == "__main__":
    how, name = sys.argv[1:3]
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    context = multiprocessing.get_context(how)
    helpers = [context.Process(target=helper, daemon=True) for _ in range(2)]
    for one in helpers:
        one.start()
    print("ready", name, flush=True)
    while not asked:
        time.sleep(0.01)
    time.sleep(0.2)
    alive = sum(one.is_alive() for one in helpers)
    print(f"saved {name} beside {alive} helpers, asked {len(asked)} times", flush=True)
    for one in helpers:
        one.kill()
"""
SAVED = "saved a beside 2 helpers, asked 1 times"
#: A launcher of ranks, as PyTorch's agent: each rank has a session of its own, and SIGTERM ends them. Arguments:
#: the variables in which ranks differ, the names of the ranks, their command.
AGENT = """
import os, signal, subprocess, sys, time
def end(*_):
    print("AGENT WAS ASKED", flush=True)
    for one in ranks:
        one.kill()
signal.signal(signal.SIGTERM, end)
ranks = [
    subprocess.Popen(
        [*sys.argv[3:], name], start_new_session=True,
        env={**os.environ, **dict.fromkeys(sys.argv[1].split(","), str(rank))},
    )
    for rank, name in enumerate(sys.argv[2])
]
while any(one.poll() is None for one in ranks):
    time.sleep(0.05)
"""
#: The first rank, which starts the second one itself.
FIRST = """
import os, signal, subprocess, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
if os.environ["LOCAL_RANK"] == "0":
    other = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "LOCAL_RANK": "1"})
print("ready", os.environ["LOCAL_RANK"], flush=True)
while not asked:
    time.sleep(0.01)
if os.environ["LOCAL_RANK"] == "0":
    other.wait()
print("saved", os.environ["LOCAL_RANK"], flush=True)
"""


@pytest.fixture
def channel(one_host: Host) -> Channel:
    return one_host.channel()


def begin(
    host: Host,
    channel: Channel,
    files: dict[str, str],
    *argv: str,
    ready: int = 1,
    context: object = None,
    **changes: object,
) -> None:
    """Start a run with some files, and wait until its programs have handlers."""
    digest = host.send_archive("payloads", {"train.py": TRAIN, **files})
    start(channel, make_plan(RUN, *argv, payload=digest, **changes), context=context)
    channel.wait(lambda: log(channel).count("ready") == ready)


def log(channel: Channel, rank: int = 0) -> str:
    return channel.stream(RUN, f"rank{rank}.log").decode()


def ask(channel: Channel, **how: object) -> str:
    """Request the end of the ranks, and return their log and the reason once they have ended."""
    channel.call("request_stop", run=RUN, **{"by_signal": True, "grace_s": 60, **how})
    reason = channel.wait_event(RUN, "ended")["reason"]
    return f"{log(channel)}{reason}"


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_a_program_is_asked_and_its_helpers_are_not(one_host: Host, channel: Channel, how: str) -> None:
    begin(one_host, channel, {}, "python", "train.py", how, "a")
    channel.wait(lambda: log(channel).count("helper") == 2)
    told = ask(channel)
    assert SAVED in told
    assert "HELPER WAS ASKED" not in told
    assert told.endswith("stopped"), "the library has not reported that training is complete"


@pytest.mark.parametrize("how", ["spawn", "forkserver"])
def test_helpers_of_a_program_that_sets_its_own_rank_are_no_ranks(one_host: Host, channel: Channel, how: str) -> None:
    """Their environment differs from the one with which the program was started, as that of ranks."""
    script = TRAIN.replace("    asked = []\n", '    asked = []\n    os.environ["RANK"] = "7"\n')
    begin(one_host, channel, {"train.py": script}, "python", "train.py", how, "a")
    channel.wait(lambda: log(channel).count("helper") == 2)
    told = ask(channel)
    assert SAVED in told
    assert "HELPER WAS ASKED" not in told


SHELLS = {
    "a script": ("python train.py fork a\n", "bash"),
    "the end of a script": ("exec python train.py fork a\n", "bash"),
    "a pipeline": ("set -o pipefail; python train.py fork a 2>&1 | tee log.txt\n", "bash"),
    "a subshell": ("( cd . && python train.py fork a ) | cat\n", "bash"),
    "a trap for the end of the script": ("trap 'echo cleaned up' EXIT\npython train.py fork a\necho after\n", "bash"),
    "a trap that passes it on": (
        "trap 'kill -TERM $child' TERM\npython train.py fork a &\nchild=$!\nwait\nwait\n",
        "bash",
    ),
    "in the background": ("sleep 1000 &\npython train.py fork a &\nwait $!\n", "bash"),
    "another shell": ("python train.py fork a\necho after\n", "sh"),
    "timeout": ("timeout 1000 python train.py fork a\necho after\n", "bash"),
    "make": ("printf 'all:\\n\\tcd . ; python train.py fork a ; true\\n' > Makefile; make\n", "bash"),
}


@pytest.mark.parametrize("name", SHELLS)
def test_a_shell_passes_the_request_to_its_program(one_host: Host, channel: Channel, name: str) -> None:
    script, shell = SHELLS[name]
    begin(one_host, channel, {"run.sh": script.replace("python", one_host.python)}, shell, "run.sh")
    told = ask(channel)
    assert SAVED in told
    assert "HELPER WAS ASKED" not in told
    assert ("echo after" in script) == ("after" in told), "the script goes on to its end"
    assert ("EXIT" in script) == ("cleaned up" in told)


def test_a_shell_whose_command_cannot_act_gets_the_request_for_its_trap(one_host: Host, channel: Channel) -> None:
    script = (
        "trap 'echo asked; touch stop' TERM\n(echo ready; while [ ! -e stop ]; do sleep 0.02; done; echo saved) &\n"
    )
    begin(one_host, channel, {"run.sh": f"{script}wait\nwait\n"}, "bash", "run.sh")
    assert "asked\nsaved\n" in ask(channel)


def test_the_next_program_of_a_script_is_asked_as_well_and_an_upload_is_not(one_host: Host, channel: Channel) -> None:
    script = (
        "echo ready\npython -c 'import time; time.sleep(1000)'\n"
        "python -c 'import time; time.sleep(3.5); print(\"uploaded\", flush=True)'\npython train.py fork a\n"
    )
    begin(one_host, channel, {"run.sh": script.replace("python", one_host.python)}, "bash", "run.sh")
    until(lambda: len(one_host.processes(RUN)) == 2, "the first program")
    told = ask(channel)
    assert "uploaded" in told
    assert SAVED in told


@pytest.mark.parametrize("ending", ["", "; time.sleep(1000)"])
def test_a_program_that_only_waits_for_another_one_passes_the_request_on(
    one_host: Host, channel: Channel, ending: str
) -> None:
    # As `accelerate launch` and scripts that call subprocess.run. One that goes on afterwards gets it then.
    wrapper = f"import subprocess, sys, time; subprocess.run([sys.executable, 'train.py', 'fork', 'a']){ending}"
    begin(one_host, channel, {}, "python", "-c", wrapper)
    assert SAVED in ask(channel)


@pytest.mark.parametrize(
    "variables", ["TORCHELASTIC_RUN_ID,RANK,LOCAL_RANK", "OMPI_COMM_WORLD_RANK,PMIX_RANK", "PMI_RANK", "SLURM_PROCID"]
)
def test_the_ranks_of_a_launcher_are_asked_and_not_the_launcher(
    one_host: Host, channel: Channel, variables: str
) -> None:
    command = f"{one_host.python} agent.py {variables} ab {one_host.python} train.py spawn"
    files = {"agent.py": AGENT, "run.sh": f"{command}\n"}
    begin(one_host, channel, files, "bash", "run.sh", ready=2)
    channel.wait(lambda: log(channel).count("helper") == 4)
    told = ask(channel)
    assert SAVED in told
    assert SAVED.replace("saved a", "saved b") in told
    assert "WAS ASKED" not in told


def test_a_first_rank_that_has_started_the_others_is_asked_with_them(one_host: Host, channel: Channel) -> None:
    begin(one_host, channel, {"first.py": FIRST}, "python", "first.py", ready=2, env={"LOCAL_RANK": "0"})
    told = ask(channel)
    assert "saved 0" in told
    assert "saved 1" in told


def test_the_searcher_stops_a_program_and_not_its_helpers(one_host: Host, channel: Channel) -> None:
    metrics = """
import json, os
with open(os.environ["DTRAIN_METRICS"], "a") as file:
    file.write(json.dumps({"step": 10, "validation": {"loss": 1.0}}) + "\\n")
"""
    context = {"config": {"searcher": {"metric": "loss", "max_length": {"batches": 100}}}, "rungs": [10]}
    script = TRAIN.replace('    print("ready"', f'    exec({metrics!r})\n    print("ready"')
    begin(one_host, channel, {"train.py": script}, "python", "train.py", "fork", "a", context=context)
    channel.wait(lambda: [one for one in channel.events(RUN, "rank0.events") if one["kind"] == "rung"])
    channel.call("decide", run=RUN, token=7, decisions={"0": "stop"})
    channel.wait_event(RUN, "ended")
    assert SAVED in log(channel)
    assert "HELPER WAS ASKED" not in log(channel)


def test_at_the_deadline_every_process_gets_sigterm_and_then_sigkill(one_host: Host, channel: Channel) -> None:
    deaf = TRAIN.replace("asked.append(True)", 'print("I stay", flush=True)')
    begin(one_host, channel, {"train.py": deaf}, "python", "train.py", "fork", "a", grace_s=1)
    channel.wait(lambda: log(channel).count("helper") == 2)
    begun = time.monotonic()
    told = ask(channel, grace_s=1)
    assert time.monotonic() - begun >= 2
    assert told.count("I stay") == 2
    assert told.count("HELPER WAS ASKED") == 2
    exit_ = channel.event(RUN, "exit")
    assert exit_ is not None
    assert (exit_["exit_code"], exit_["sent_signal"]) == (-signal.SIGKILL, True)


LOADER = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 10**9
    def __getitem__(self, index):
        return torch.zeros(1)

if __name__ == "__main__":
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    loader = DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context=sys.argv[1])
    for step, batch in enumerate(loader):
        if step == 2:
            print("ready", flush=True)
        if asked:
            print("saved", os.environ["RANK"], "asked", len(asked), flush=True)
            break
"""


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_the_workers_of_a_real_loader_are_not_asked(one_host: Host, channel: Channel, how: str) -> None:
    begin(one_host, channel, {"loader.py": LOADER}, sys.executable, "loader.py", how)
    told = ask(channel)
    assert "saved 0 asked 1" in told
    assert "killed by signal" not in told
    assert "exited unexpectedly" not in told


@pytest.mark.nightly
@pytest.mark.torch
@pytest.mark.parametrize("wrapper", ["", "bash"])
def test_the_ranks_of_a_real_torchrun_are_asked_and_neither_its_agent_nor_their_workers(
    one_host: Host, channel: Channel, wrapper: str
) -> None:
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "loader.py",
        "fork",
    ]
    argv = ["bash", "run.sh"] if wrapper else torchrun
    files = {"loader.py": LOADER, "run.sh": f"{' '.join(torchrun)}\n"}
    begin(one_host, channel, files, *argv, ready=2, env={"PATH": os.environ["PATH"]})
    told = ask(channel)
    assert "saved 0 asked 1" in told
    assert "saved 1 asked 1" in told
    assert "SignalException" not in told
    assert "killed by signal" not in told
    exit_ = channel.event(RUN, "exit")
    assert exit_ is not None
    assert exit_["exit_code"] == 0, "the agent ended by itself"
