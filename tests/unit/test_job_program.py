"""The program of a job's nodes: its text, its ports, its addresses, its variables and its frames."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_dtrain.hosts.job.identity import PORT_RANGE, JobIdentity
from airflow_provider_dtrain.hosts.job.program import printing, relay_argv, serve_argv, serve_input
from airflow_provider_dtrain.supervisor.machine.job_process import JobProcess
from airflow_provider_dtrain.supervisor.serve.addresses import first_host, listen, resolve
from airflow_provider_dtrain.supervisor.serve.commands import command_environment
from airflow_provider_dtrain.supervisor.serve.frames import FRAME_BYTES, Decoder, Frame, FrameError, Kind
from airflow_provider_dtrain.supervisor.serve.node import BAD_PARAMETERS

IDENTITY = JobIdentity.create()


def test_input_is_two_lines_that_a_shell_prints_without_a_file(tmp_path: Path) -> None:
    content = serve_input(IDENTITY, ports=[1, 2])
    assert content.count(b"\n") == 2
    assert content.isascii()
    assert len(content) < 64 << 10
    for shell in ("sh", "bash"):
        done = subprocess.run([shell, "-c", printing(content)], capture_output=True, cwd=tmp_path, check=True)
        assert done.stdout == content


def test_the_key_is_in_no_argument_and_in_no_text_of_the_identity() -> None:
    secret = IDENTITY.key.splitlines()[1]
    arguments = [*serve_argv("python3"), *relay_argv("python3", IDENTITY, "7")]
    assert not [one for one in [*arguments, repr(IDENTITY)] if secret in one]
    assert all("\n" not in one for one in arguments)


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8"])
def test_an_interpreter_that_is_too_old_is_named(version: str) -> None:
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if not found:
        pytest.skip(f"Python {version} is not installed")
    done = subprocess.run(
        serve_argv(str(found[0])), input=serve_input(IDENTITY, ports=[1]), capture_output=True, check=False
    )
    assert done.returncode == 1
    assert b"Python 3.9 or newer is needed, not " + version.encode() in done.stderr


def test_wrong_parameters_end_the_program_and_are_not_shown() -> None:
    first = serve_input(IDENTITY, ports=[1]).split(b"\n")[0]
    secret = IDENTITY.key.splitlines()[1].encode()
    parameters = json.loads(serve_input(IDENTITY, ports=[1]).split(b"\n")[1])
    for line in (b"", b"no JSON", json.dumps({**parameters, "protocol": 0}).encode(), b'{"protocol": 1}'):
        done = subprocess.run(
            serve_argv(sys.executable), input=first + b"\n" + line + b"\n", capture_output=True, check=False,
            env={**os.environ, "SLURM_PROCID": "0"},
        )  # fmt: skip
        assert done.returncode == BAD_PARAMETERS
        assert b"bad parameters" in done.stderr
        assert secret not in done.stderr


def test_ports_are_the_same_for_a_job_and_different_between_jobs() -> None:
    ports = IDENTITY.ports()
    assert ports == JobIdentity(certificate=IDENTITY.certificate, key="").ports()
    assert len(set(ports)) == 16
    assert all(PORT_RANGE[0] <= port <= PORT_RANGE[1] for port in ports)
    assert ports != JobIdentity.create().ports()
    assert sorted(IDENTITY.ports((500, 503))) == [500, 501, 502, 503]


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("gpu1", "gpu1"),
        ("gpu[01-04,7],login", "gpu01"),
        ("rack[3,5]-gpu[10-12]-ib,x", "rack3-gpu10-ib"),
        ("a,b[1-2]", "a"),
        ("", ""),
    ],
)
def test_the_first_node_of_a_list_is_found(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_addresses_of_this_machine_alone_come_last_and_all_addresses_never() -> None:
    assert resolve(["127.0.0.1", "0.0.0.0", "::", "192.0.2.1", "no such name", "224.0.0.1", "::1"]) == [
        "192.0.2.1", "127.0.0.1", "::1",
    ]  # fmt: skip


def test_a_foreign_address_is_passed_by() -> None:
    sock = listen(["192.0.2.1", "127.0.0.1"], [0])
    assert sock is not None
    with sock:
        assert sock.getsockname()[0] == "127.0.0.1"
        assert listen(["127.0.0.1"], [sock.getsockname()[1]]) is None


def test_commands_get_no_variable_of_slurm_or_a_process_manager() -> None:
    removed = [
        "SLURM_JOB_ID", "SLURMD_NODENAME", "SRUN_DEBUG", "SBATCH_EXPORT", "SALLOC_X", "PMI_RANK", "PMI2_X", "PMIX_RANK",
        "PALS_RANKID", "MPI_LOCALRANKID", "HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP", "OMPI_MCA_plm_slurm_args",
    ]  # fmt: skip
    kept = ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "PATH", "OMPI_MCA_btl", "LD_LIBRARY_PATH", "MY_SLURM_NOTE"]
    found = command_environment(dict.fromkeys([*removed, *kept], "x"))
    assert sorted(found) == sorted([*kept, "DTRAIN_JOB_PROCESS"])
    assert not JobProcess(found).has_ended


@given(
    st.lists(
        st.builds(
            Frame, st.sampled_from(Kind), st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1),
            st.integers(0, 2**32 - 1), st.binary(max_size=100),
        )
    ),
    st.integers(1, 40),
)  # fmt: skip
def test_frames_arrive_however_their_bytes_are_cut(frames: list[Frame], size: int) -> None:
    content = b"".join(frame.encode() for frame in frames)
    decoder = Decoder()
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    assert [frame for piece in pieces for frame in decoder.frames(piece)] == frames


@given(st.binary(max_size=400))
def test_any_bytes_are_frames_or_an_error(content: bytes) -> None:
    try:
        for frame in Decoder().frames(content):
            assert len(frame.body) <= FRAME_BYTES
            for read in (frame.document, frame.credit, frame.exit_code):
                try:
                    read()
                except FrameError:
                    continue
    except FrameError:
        return
