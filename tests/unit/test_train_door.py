"""The core door: reports, stops and checkpoints of files for programs of any framework, without PyTorch."""

from __future__ import annotations

import json
import signal
import socket
import sys
from pathlib import Path

import pytest

import airflow_provider_dtrain.train as dtrain
from airflow_provider_dtrain.train.checkpoint import description, disk
from airflow_provider_dtrain.train.checkpoint import files as files_module
from airflow_provider_dtrain.train.checkpoint.files import FileCheckpoints
from airflow_provider_dtrain.train.checkpoint.saver import Saver
from airflow_provider_dtrain.train.data.position import Progress
from airflow_provider_dtrain.train.environment import RankEnvironment
from airflow_provider_dtrain.train.errors import CheckpointError, SetupError
from airflow_provider_dtrain.train.gradients.optimizer_step import Gradients
from airflow_provider_dtrain.train.prepared import Prepared
from airflow_provider_dtrain.train.process import message_server
from airflow_provider_dtrain.train.process.streams import Streams
from airflow_provider_dtrain.train.reports import failure
from airflow_provider_dtrain.train.reports.events import EventWriter
from airflow_provider_dtrain.train.search.stop_answer import AgreementPace, StopAnswer
from tests.support.decisions import tell
from tests.support.event_lines import lines_of
from tests.support.plain_programs import outputs, start
from tests.support.rank_threads import ThreadRank, in_ranks
from tests.support.ranks import free_port


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(failure, "_state", {"installed": False, "failed": False})
    monkeypatch.setattr("airflow_provider_dtrain.train.process.fast_exit._registered", [True])


TRAIN = """
    import sys, airflow_provider_dtrain.train as dtrain
    with dtrain.init() as ctx:
        latest = ctx.latest_checkpoint()
        step = latest.step if latest else 0
        if latest:
            parts = [(latest.path / "state" / f"part-{rank}").read_text() for rank in range(ctx.world_size)]
            print("found", latest.step, latest.metadata["name"], *parts)
        last = step + 4000
        while step < last:
            step += 1
            ctx.report(step, {"loss": float(ctx.rank)})
            if step == 5 and ctx.rank == 0:
                open("stop_requested", "w").close()
            if ctx.should_stop(step):
                break
        with ctx.checkpoint(step, metadata={"name": "forest"}) as folder:
            (folder / "state").mkdir(exist_ok=True)
            (folder / "state" / f"part-{ctx.rank}").write_text(str(step))
            (folder / "same").write_text("alike")
        print("left at", step, bool(ctx.should_stop), ctx.device, "torch" in sys.modules)
"""


def test_two_ranks_without_torch_stop_at_the_same_step_and_resume_from_the_files_of_both(tmp_path):
    run = tmp_path / "run"
    lines = outputs(start(run, TRAIN, 2))
    assert "left at" in lines[0]
    assert lines[0].split("left at")[1] == lines[1].split("left at")[1]
    step = int(lines[0].split("left at")[1].split()[0])
    assert 5 <= step < 4000
    assert lines[0].split("left at")[1].split()[1:] == ["True", "None", "False"]
    events = lines_of(run / "events0")
    # The first report is written at once, because it is not known yet that the ranks will synchronize.
    assert {line["metrics"]["loss"] for line in events if line["kind"] == "report" and line["step"] > 1} == {0.5}
    saved = next(line for line in events if line["kind"] == "checkpoint")
    (run / "stop_requested").unlink()
    where = run / saved["path"]
    assert sorted(json.loads((where / "metadata.json").read_text())["files"]) == [
        "same",
        "state/part-0",
        "state/part-1",
    ]
    again = outputs(start(run, TRAIN, 2, latest_checkpoint=str(where)))
    assert all(f"found {step} forest {step} {step}" in output for output in again), again


def test_a_rank_that_dies_ends_the_exchange_of_the_others_with_its_name(tmp_path):
    body = """
        import os, airflow_provider_dtrain.train as dtrain
        with dtrain.init() as ctx:
            ctx.distributed.barrier()
            if ctx.rank == 1:
                os._exit(3)
            try:
                ctx.sync(1)
            except dtrain.LostRankError as error:
                print(error, flush=True)
                os._exit(0)
    """
    ranks = start(tmp_path / "run", body, 2)
    output = ranks[0].communicate(timeout=60)[0]
    assert "rank 1 has left the gang" in output


def test_a_stranger_cannot_join_the_ranks_and_does_not_disturb_them(tmp_path):
    body = """
        import os, socket, airflow_provider_dtrain.train as dtrain
        from airflow_provider_dtrain.train.process import message_server
        with dtrain.init() as ctx:
            ctx.distributed.barrier()
            if ctx.rank == 1:
                address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
                for words in (b"GET / HTTP/1.0" + b"x" * 40, b"\\xff" * 64, {"run": "another", "rank": 0, "size": 2}):
                    with socket.create_connection(address) as stranger:
                        stranger.sendall(words) if isinstance(words, bytes) else message_server.send(stranger, words)
                        try:
                            print("answer", stranger.recv(10))
                        except ConnectionResetError:
                            print("answer b''")
            print("together", ctx.distributed.allgather(ctx.rank))
    """
    lines = outputs(start(tmp_path / "run", body, 2))
    assert lines[1].count("answer b''") == 3
    assert all("together [0, 1]" in line for line in lines)


def test_a_rank_of_another_run_does_not_take_the_place_of_one_that_has_not_joined_yet():
    place = ("127.0.0.1", free_port())
    server = message_server.MessageServer(*place, size=2, run="mine", timeout_s=5.0)
    for hello in ({"run": "another", "rank": 1, "size": 2}, {"run": "mine", "rank": 1, "size": 3}):
        with socket.create_connection(place) as stranger:
            message_server.send(stranger, hello)
            with pytest.raises(dtrain.LostRankError):
                message_server.receive(stranger)
    own = [message_server.connect(*place, rank=rank, size=2, run="mine", timeout_s=5.0) for rank in (0, 1)]
    for connection in own:
        message_server.send(connection, {"op": "leave"})
        connection.close()
    server.close()


def test_messages_without_torch_have_the_meaning_of_those_with_it(tmp_path):
    body = """
        import airflow_provider_dtrain.train as dtrain
        with dtrain.init() as ctx:
            ranks = ctx.distributed
            with ranks.local_leader_first():
                print("turn", ctx.rank, flush=True)
            print(ranks.gather([ctx.rank]), ranks.broadcast("a" if ctx.is_chief else None), ranks.largest(ctx.rank))
            print(ranks.on_chief(lambda: ctx.rank), ranks.broadcast_bytes(b"xy" if ctx.is_chief else None))
            ranks.post(f"from{ctx.rank}", "hello")
            print(ranks.posted(f"from{1 - ctx.rank}"), ranks.count("n", 0) >= 0, ranks.any(ctx.rank == 1))
            first = ranks.first_value("who", str(ctx.rank))
            print(len(set(ranks.allgather(first))))
            for text in (b"piece", b"", b"other"):
                room = bytearray(text if ctx.rank else len(text))
                (ranks.send_bytes if ctx.rank else ranks.receive_bytes)(memoryview(room), 1 - ctx.rank)
                assert room == text, room
            try:
                ranks.allgather(object())
            except dtrain.SetupError as error:
                print(error)
    """
    zero, one = outputs(start(tmp_path / "run", body, 2))
    assert "[[0], [1]] a 1\n0 b'xy'\nhello True True\n1\nWithout PyTorch, ranks exchange JSON values" in zero
    assert "None a 1\n0 b'xy'\nhello True True\n1\n" in one


def test_a_program_that_is_killed_while_it_writes_leaves_no_checkpoint_and_the_next_start_sweeps(tmp_path):
    body = """
        import sys, time, airflow_provider_dtrain.train as dtrain
        with dtrain.init() as ctx:
            with ctx.checkpoint(1) as folder:
                (folder / "half").write_text("x" * 1000)
                print("written", flush=True)
                time.sleep(60 if len(sys.argv) == 1 else 0)
    """
    rank = start(tmp_path / "run", body, 1)[0]
    assert rank.stdout is not None
    assert rank.stdout.readline() == "written\n"
    rank.send_signal(signal.SIGKILL)
    rank.wait(30)
    left = list((tmp_path / "run" / "checkpoints").glob("*step-*"))
    assert [path.name.startswith(".step-00000001.files.") for path in left] == [True]
    outputs(start(tmp_path / "run", body.replace("60 if", "0 if"), 1))
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("*step-*")] == ["step-00000001"]


def train(tmp_path, config=None):
    return dtrain.init(checkpoint_dir=tmp_path / "saved", backend="sockets", config=config, hparams={"lr": 1.0})


def save(ctx, step, text="state", **metadata):
    with ctx.checkpoint(step, metadata=metadata) as folder:
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "deep" / "er" / "weights.bin").write_text(text)


def test_the_newest_intact_files_are_found_and_a_damaged_checkpoint_is_passed_over(tmp_path, caplog):
    with train(tmp_path) as ctx:
        assert ctx.latest_checkpoint() is None
        for step in (1, 2):
            save(ctx, step, f"state {step}", nested={"step": step})
        found = ctx.latest_checkpoint()
        assert (found.step, found.metadata, found.world_size) == (2, {"nested": {"step": 2}}, 1)
        assert Path(found, "deep/er/weights.bin").read_text() == "state 2"
    assert len(list((tmp_path / "saved").glob("*step-*"))) == 1, "retention removes the older one"
    with train(tmp_path, {"checkpoint_policy": "all"}) as ctx:
        save(ctx, 3, "state 3")
    (tmp_path / "saved" / "step-00000003" / "deep" / "er" / "weights.bin").write_text("other 3")
    with train(tmp_path) as ctx:
        assert ctx.latest_checkpoint().step == 2
    assert "step-00000003 is damaged" in caplog.text


def test_files_go_to_a_bucket_and_come_back_with_their_folders(tmp_path):
    pytest.importorskip("fsspec")
    options = {"checkpoint_dir": f"memory://door/{tmp_path.name}", "backend": "sockets"}
    with dtrain.init(**options) as ctx:
        save(ctx, 1, "old")
        save(ctx, 2, "new", a=1)
    with dtrain.init(**options) as ctx:
        found = ctx.latest_checkpoint()
        assert (found.step, found.metadata, found.where.startswith("memory://door/")) == (2, {"a": 1}, True)
        assert Path(found, "deep/er/weights.bin").read_text() == "new"


def test_training_does_not_start_over_silently_when_every_checkpoint_is_damaged(tmp_path):
    with train(tmp_path) as ctx:
        save(ctx, 1)
    (tmp_path / "saved" / "step-00000001" / "deep" / "er" / "weights.bin").unlink()
    with train(tmp_path) as ctx:
        with pytest.raises(dtrain.CheckpointError, match=r"start_over=True to .*ctx\.latest_checkpoint"):
            ctx.latest_checkpoint()
        assert ctx.latest_checkpoint(start_over=True) is None


def test_a_block_that_raises_leaves_nothing_behind(tmp_path):
    with train(tmp_path) as ctx:
        with pytest.raises(KeyError), ctx.checkpoint(1) as folder:
            {}[(folder / "a").write_text("a")]
        assert list((tmp_path / "saved").glob("*step-*")) == []
        save(ctx, 1)
        assert ctx.latest_checkpoint().step == 1


def link(folder):
    (folder / "a").symlink_to("/etc/hostname")


def reserved(folder):
    (folder / "metadata.json").write_text("{}")


LENGTHS = """
    import airflow_provider_dtrain.train as dtrain
    with dtrain.init() as ctx:
        for epoch in (1, 2, 3):
            options = {"average": False} if ALONE else {}
            if ctx.is_chief or not ALONE:
                ctx.report_validation(10 * epoch, {"error": 1.0}, epoch=epoch, **options)
            if ctx.should_stop(10 * epoch, at_once=True):
                break
        print("left at", epoch)
"""


@pytest.mark.parametrize("alone", [True, False])
def test_all_ranks_stop_at_the_length_in_epochs_that_a_loop_of_its_own_reports(tmp_path, alone):
    run = tmp_path / "run"
    searcher = {"name": "async_halving", "metric": "error", "max_length": {"epochs": 2}}
    tell(run, {"0": "continue"})
    body = LENGTHS.replace("ALONE", str(alone))
    lines = outputs(start(run, body, 2, config={"searcher": searcher}, rungs=[1, 2]))
    assert ["left at 2" in line for line in lines] == [True, True], lines
    events = lines_of(run / "events0")
    assert [(line["rung"], line["units"]) for line in events if line["kind"] == "rung"] == [(0, 1), (1, 2)]
    assert "stopped" not in {line["kind"] for line in events}, "the trial has trained to its end"


def test_a_loop_of_its_own_that_does_not_count_epochs_is_refused_at_its_first_validation(tmp_path):
    body = LENGTHS.replace("ALONE", "False").replace("epoch=epoch, ", "")
    searcher = {"name": "async_halving", "metric": "error", "max_length": {"epochs": 2}}
    (rank,) = start(tmp_path / "run", body, 1, config={"searcher": searcher}, rungs=[1, 2])
    output = rank.communicate(timeout=100)[0]
    assert rank.returncode == 1
    assert "SetupError: searcher.max_length counts epochs" in output


def test_a_checkpoint_of_rank_0_alone_needs_no_other_rank(tmp_path):
    def body(ranks):
        files, saver = checkpoints(ranks, tmp_path / "saved")
        before = ranks.exchanges
        if ranks.rank:
            with pytest.raises(SetupError, match="is for rank 0, and rank 1 called it"):
                files.write(4, {}, {}, alone=True)
        else:
            with files.write(4, {"a": 1}, {}, alone=True) as begun:
                (begun.path / "model").write_text("x")
            with pytest.raises(ValueError, match="no memory"), files.write(5, {}, {}, alone=True):
                raise ValueError("no memory")
            with pytest.raises(CheckpointError, match="is not a plain file"), files.write(6, {}, {}, alone=True) as bad:
                (bad.path / "link").symlink_to("/etc/passwd")
            assert files.read_alone(begun.where).metadata == {"a": 1}
        assert ranks.exchanges == before
        saver.settle()
        return files.latest()

    results = in_ranks(2, body)
    assert [(result.step, result.where) for result in results] == [(4, str(tmp_path / "saved" / "step-00000004"))] * 2
    assert [path.name for path in (tmp_path / "saved").glob("*step*")] == ["step-00000004"]


@pytest.mark.parametrize(
    ("make", "words"), [(link, "a is not a plain file"), (reserved, "cannot be the name of a file")]
)
def test_files_that_a_checkpoint_cannot_hold_are_refused_by_name(tmp_path, make, words):
    with train(tmp_path) as ctx:
        with pytest.raises(dtrain.CheckpointError, match=words), ctx.checkpoint(1) as folder:
            make(folder)
        assert list((tmp_path / "saved").glob("*step-*")) == []


@pytest.mark.parametrize("metadata", [{"a": float("nan")}, {"a": object()}, {"a": "x" * (1 << 20)}])
def test_metadata_that_is_no_small_json_is_refused_before_the_block(tmp_path, metadata):
    with train(tmp_path) as ctx:
        refused = pytest.raises(dtrain.CheckpointError, match="metadata of ctx.checkpoint must")
        with refused, ctx.checkpoint(1, metadata=metadata):
            pytest.fail("the block runs")


def test_files_and_prepared_objects_are_two_kinds_of_checkpoints(tmp_path):
    class Counter:
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    with train(tmp_path) as ctx:
        save(ctx, 1)
        with pytest.raises(dtrain.CheckpointError, match=r"written by ctx\.checkpoint.*ctx\.latest_checkpoint"):
            ctx.restore_checkpoint()
        with pytest.raises(dtrain.CheckpointError, match=r"written by ctx\.checkpoint"):
            description.refuse_files(disk.read(ctx.latest_checkpoint().path))
        ctx.register(counter=Counter())
        with pytest.raises(dtrain.CheckpointError, match=r"ctx\.save_checkpoint"), ctx.checkpoint(2):
            pytest.fail("the block runs")


def test_without_checkpoints_the_block_runs_and_nothing_is_saved(tmp_path):
    with train(tmp_path, {"checkpoint_policy": "none"}) as ctx:
        save(ctx, 1)
        assert ctx.latest_checkpoint() is None


class FarRank(ThreadRank):
    """A rank on another host: paths that rank 0 sends lead to nothing on its disk."""

    def broadcast(self, value=None):
        found = super().broadcast(value)
        if self.rank and isinstance(found, list) and found and str(found[0]).startswith("/"):
            return [f"/on-another-host{found[0]}", *found[1:]]
        if self.rank and isinstance(found, list) and found and isinstance(found[0], list):
            return [[f"/on-another-host{found[0][0]}", *found[0][1:]], *found[1:]]
        return found


def checkpoints(ranks, folder):
    env = RankEnvironment(rank=ranks.rank, world_size=ranks.size, group_rank=ranks.rank)
    state = Prepared(), Progress(), Gradients(ranks, lambda: None, {}), Streams(0, ranks.rank)
    saver = Saver(env, ranks, EventWriter(None), *state, where=folder, has_earlier=True)
    return FileCheckpoints(env, ranks, saver), saver


def test_the_files_of_ranks_on_other_hosts_travel_to_the_checkpoint_and_back(tmp_path, monkeypatch):
    monkeypatch.setattr("airflow_provider_dtrain.train.checkpoint.rank_transfer.SENT_BYTES", 9)
    monkeypatch.setattr("airflow_provider_dtrain.train.checkpoint.files.PIECE_BYTES", 5)
    monkeypatch.setattr("tests.support.rank_threads.ThreadRank", FarRank)

    def body(ranks):
        files, saver = checkpoints(ranks, tmp_path / "saved")
        with files.write(4, {"a": 1}, {}) as begun:
            (begun.path / f"part-{ranks.rank}").write_text(f"rank {ranks.rank} " * (3 + ranks.rank))
            (begun.path / f"empty-{ranks.rank}").write_text("")
        saver.settle()
        found = files.latest()
        names = sorted(path.name for path in found.path.iterdir())
        return found.path, names, (found.path / "part-2").read_text(), files

    results = in_ranks(3, body)
    assert not any(isinstance(result, Exception) for result in results), results
    expected = sorted(["metadata.json", *(f"{kind}-{rank}" for kind in ("part", "empty") for rank in range(3))])
    assert all(result[1:3] == (expected, "rank 2 " * 5) for result in results)
    assert len({result[0] for result in results}) == 3, "each host has its own copy"


def test_a_file_that_becomes_shorter_while_it_is_sent_ends_the_checkpoint_of_all(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.support.rank_threads.ThreadRank", FarRank)
    listing = files_module._listing

    def cut(folder):
        names = listing(folder)
        for path in folder.glob("part-1"):
            path.write_text("ab")
        return names

    monkeypatch.setattr(files_module, "_listing", cut)

    def body(ranks):
        files, _ = checkpoints(ranks, tmp_path / "saved")
        with files.write(4, {}, {}) as begun:
            (begun.path / f"part-{ranks.rank}").write_text("abcdef")

    results = in_ranks(3, body)
    assert all("part-1 became shorter after the block of ctx.checkpoint" in str(result) for result in results), results
    assert list((tmp_path / "saved").glob("*step-*")) == []


def test_two_ranks_that_write_one_name_differently_are_named(tmp_path):
    def body(ranks):
        files, _ = checkpoints(ranks, tmp_path / "saved")
        with files.write(4, {}, {}) as begun:
            (begun.path / "model").write_text(str(ranks.rank))

    results = in_ranks(2, body)
    assert all("rank 1 and a lower rank wrote model" in str(result) for result in results)
    assert list((tmp_path / "saved").glob("*step-*")) == []


def test_a_block_that_fails_on_one_rank_ends_the_checkpoint_of_all(tmp_path):
    def body(ranks):
        files, _ = checkpoints(ranks, tmp_path / "saved")
        with files.write(4, {}, {}) as begun:
            (begun.path / f"model{ranks.rank}").write_text("x")
            if ranks.rank == 1:
                raise ValueError("no memory")

    results = in_ranks(2, body)
    assert isinstance(results[1], ValueError)
    assert "rank 1 failed in ctx.checkpoint: ValueError: no memory" in str(results[0])
    assert list((tmp_path / "saved").glob("*step-*")) == []


@pytest.mark.parametrize(("seconds", "gap"), [(0.1, 9), (60.0, 1), (1e-6, 100)])
def test_the_ranks_agree_about_once_a_second_and_at_first_in_each_step(seconds, gap):
    now = [0.0]
    pace, gaps = AgreementPace(100, lambda: now[0]), []
    for _ in range(4):
        while not pace.is_due():
            now[0] += seconds
        now[0] += seconds
        gaps.append(pace.proposal())
        pace.begin(pace.proposal())
    assert gaps[0] == 1, "the speed is unknown"
    assert gap <= gaps[-1] <= gap + 1


def test_the_answer_is_a_truth_value_that_can_be_called():
    answer = StopAnswer(False, lambda step, *, at_once: step == 3 or at_once)
    assert not answer
    assert answer == False  # noqa: E712 - the comparison is the subject
    assert str(answer) == "False"
    assert (answer(3), answer(4), answer(4, at_once=True)) == (True, False, True)


def test_torch_is_asked_for_by_name_where_it_is_missing(tmp_path):
    body = """
        import airflow_provider_dtrain.train as dtrain
        try:
            dtrain.init(device="cuda")
        except dtrain.SetupError as error:
            print(error)
        with dtrain.init() as ctx:
            try:
                ctx.prepare(object())
            except dtrain.SetupError as error:
                print(error)
    """
    output = outputs(start(tmp_path / "run", body, 1))[0]
    assert "dtrain.init(device='cuda', backend=None) needs PyTorch" in output
    assert "ctx.prepare needs PyTorch" in output
