"""Provenance of trials: stored once, shown by rights, and compared without a claim about what is not known."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.core.config.secrets import take_secrets
from airflow_provider_dtrain.errors import StaleWatchError
from airflow_provider_dtrain.hosts.payload import pack
from airflow_provider_dtrain.resources.provenance import TrialProvenance
from airflow_provider_dtrain.store.database.tables import manifests, payloads
from airflow_provider_dtrain.store.queries.differences import experiment_differences, trial_differences
from airflow_provider_dtrain.store.queries.provenance import provenance_of
from airflow_provider_dtrain.store.queries.rights import AllRights
from testbed.stores import host
from tests.support.api_world import Api
from tests.support.search_world import Search

pytestmark = pytest.mark.airflow

GIT = {"commit": "a" * 40, "is_clean": True, "problem": ""}
BUNDLE = {"name": "dags-folder", "version": "b" * 40}
PACKAGES = {"numpy": "2.1", "nvidia-nccl-cu12": "2.27.3", "torch": "2.13.0"}
HOST: dict[str, Any] = {
    "devices": {"0": "NVIDIA H100", "1": "NVIDIA H100"}, "driver": "570.1", "image": None, "python": "3.12.4",
    "executable": "/usr/bin/python3", "cuda": "12.8", "packages": PACKAGES,
}  # fmt: skip
RUNTIME = {
    "device": "cuda:0", "backend": "nccl", "python": "3.12.4", "executable": "/usr/bin/python3", "torch": "2.13.0",
    "cuda": "12.8", "cudnn": "9.10.2", "nccl": "2.27.3",
}  # fmt: skip
RIGHTS = AllRights()


class World:
    """Trials of one search, whose launches a test describes."""

    def __init__(self, search: Search, folder: Path) -> None:
        self.search, self.store, self.folder = search, search.store, folder
        self.offsets: dict[int, int] = {}

    def code(self, **files: str) -> str:
        for name, text in files.items():
            (self.folder / f"{name}.py").write_text(text)
        packed = pack(self.folder)
        self.store.payloads.put(packed.digest, packed.content)
        return packed.digest

    def trial(self, number: int, *, launched: bool = True, git: Any = GIT, bundle: Any = BUNDLE, **fields: Any) -> int:
        """Start a trial and return its id.

        :param fields: facts of its host that are not as usual, and fields of its submission
        """
        own = {name: fields.pop(name) for name in list(fields) if name in HOST}
        ticket = self.search.start(number, slots=1, source={"git": git, "bundle": bundle}, **fields)
        if launched:
            watch = self.search.watches[ticket.attempt_id]
            self.store.provenance.set_launch(ticket.attempt_id, watch, None, {"a": {**HOST, **own}})
        return ticket.trial_id

    def initialized(self, trial_id: int, **runtime: Any) -> None:
        """Let rank 0 report itself."""
        attempt = self.store.trials.get(trial_id).attempt_id
        start = self.offsets.get(attempt, 0)
        self.offsets[attempt] = start + 50
        event = {"seq": start, "at": 1.0, "kind": "init", **RUNTIME, **runtime}
        watch = self.search.watches[attempt]
        self.store.events.commit(attempt, watch, "a", "rank0.events", start, start + 50, [event])

    def of(self, trial_id: int) -> TrialProvenance:
        return provenance_of(self.store, RIGHTS, trial_id)

    def rows(self, *trial_ids: int) -> dict[str, list[str | None]]:
        return {f"{one.subject} {one.name}".strip(): one.values for one in self.compared(*trial_ids).rows}

    def compared(self, *trial_ids: int) -> Any:
        return trial_differences(self.store, RIGHTS, trial_ids)


@pytest.fixture
def world(store, tmp_path: Path) -> World:
    store.hosts.add(host("a", slots=8))
    search = Search(store)
    search.plan(max_trials=8)
    folder = tmp_path / "code"
    folder.mkdir()
    return World(search, folder)


@pytest.mark.each_change
def test_a_trial_has_the_facts_of_its_submission_and_of_its_launch(world: World) -> None:
    code = world.code(train="a")
    trial = world.trial(0, payload=code, seed=7)
    world.initialized(trial)
    found = world.of(trial)
    assert (found.code, found.seed, list(found.files or ())) == (code, 7, ["train.py"])
    assert (dataclasses.asdict(found.git), dataclasses.asdict(found.bundle)) == (GIT, BUNDLE)  # type: ignore[call-overload]
    (one,) = found.hosts
    assert (one.host, one.devices, one.driver, one.python) == ("a", HOST["devices"], "570.1", "3.12.4")
    assert found.packages == {one.packages: PACKAGES}
    assert [(rank.ranks, rank.torch, rank.cudnn, rank.nccl) for rank in found.runtimes] == [
        ([0], "2.13.0", "9.10.2", "2.27.3")
    ]
    assert (one.other_interpreter, found.lock, found.data) == (None, None, None)


@pytest.mark.each_change
def test_lists_are_stored_once_for_all_trials(world: World) -> None:
    code = world.code(train="a")
    first, second = world.trial(0, payload=code), world.trial(1, payload=code)
    assert world.of(first).packages == world.of(second).packages
    with world.store.db.engine.connect() as conn:
        assert conn.scalar(sa.select(sa.func.count()).select_from(manifests)) == 2


def test_only_the_current_follower_writes_the_facts_of_a_launch(world: World) -> None:
    attempt = world.store.trials.get(world.trial(0)).attempt_id
    stale = world.search.watches[attempt] - 1
    with pytest.raises(StaleWatchError):
        world.store.provenance.set_launch(attempt, stale, None, {})
    with pytest.raises(StaleWatchError):
        world.store.provenance.add_facts(attempt, stale, {})


def test_the_interpreter_of_an_image_is_added_to_the_facts_of_the_launch(world: World) -> None:
    trial = world.trial(0, python=None, executable=None, packages=None, image="sha256:" + "c" * 64)
    assert world.of(trial).hosts[0].python is None
    attempt = world.store.trials.get(trial).attempt_id
    watch = world.search.watches[attempt]
    world.store.provenance.add_facts(attempt, watch, {"a": {"python": "3.11.2", "packages": PACKAGES}})
    (one,) = world.of(trial).hosts
    assert (one.python, one.driver, world.of(trial).packages[one.packages or ""]) == ("3.11.2", "570.1", PACKAGES)
    # A launch on other hosts leaves nothing of the earlier one.
    world.store.provenance.set_launch(attempt, watch, None, {"b": HOST})
    assert [host.host for host in world.of(trial).hosts] == ["b"]


def test_a_rank_that_runs_another_interpreter_makes_the_packages_unknown(world: World) -> None:
    first, second = world.trial(0), world.trial(1)
    world.initialized(first)
    world.initialized(second, executable="/opt/venv/bin/python")
    assert world.of(second).hosts[0].other_interpreter == "/opt/venv/bin/python"
    rows = world.rows(first, second)
    assert rows["packages"] == ["3 known", None]
    assert rows["interpreter path"] == ["/usr/bin/python3", "/opt/venv/bin/python"]


def test_a_rank_reports_for_its_own_host_and_only_the_known_facts(world: World) -> None:
    trial = world.trial(0)
    attempt = world.store.trials.get(trial).attempt_id
    event = {"seq": 1, "at": 1.0, "kind": "init", **RUNTIME, "secret": "x"}
    world.store.events.commit(attempt, world.search.watches[attempt], "b", "rank0.events", 0, 50, [event])
    assert world.of(trial).runtimes == []
    world.initialized(trial, secret="x")
    (rank,) = world.store.events.ranks(attempt)
    assert rank.runtime == {name: value for name, value in RUNTIME.items() if name != "device"}


def test_a_new_launch_forgets_what_ranks_of_the_earlier_one_reported(world: World) -> None:
    trial = world.trial(0)
    world.initialized(trial)
    attempt = world.store.trials.get(trial).attempt_id
    assert len(world.of(trial).runtimes) == 1
    plans = {"plans": {"a": {"ranks": [{"rank": 0}]}}}
    world.store.attempts.set_plan(attempt, world.search.watches[attempt], plans)
    assert world.of(trial).runtimes == []


def test_the_list_of_files_outlives_the_code(world: World) -> None:
    code = world.code(train="a")
    trial = world.trial(0, payload=code)
    attempt = world.store.trials.get(trial).attempt_id
    watch = world.search.watches[attempt]
    world.store.attempts.end(attempt, watch, state="completed")
    world.store.queue.release(attempt, watch, "a", proof="clear")
    for _ in world.store.retention.remove(world.store.db.now() + timedelta(days=1)):
        pass
    with world.store.db.engine.connect() as conn:
        assert conn.execute(sa.select(payloads)).all() == []
    found = world.of(trial)
    assert (found.code, list(found.files or ()), len(found.hosts)) == (code, ["train.py"], 1)


# -- differences -----------------------------------------------------------------------------------
@pytest.mark.each_change
def test_equal_trials_differ_in_nothing_that_is_known(world: World) -> None:
    code = world.code(train="a")
    first, second = world.trial(0, payload=code, hparams={}), world.trial(1, payload=code, hparams={})
    found = world.compared(first, second)
    # No manifest says which data they read, and no rank has reported the cuDNN in its PyTorch.
    assert [(one.subject, one.values, one.is_unknown) for one in found.rows] == [
        ("data", [None, None], True),
        ("cuDNN", [None, None], True),
    ]
    assert {"configuration", "code", "git", "packages", "driver", "devices", "hosts", "NCCL"} <= {*found.same}


@pytest.mark.each_change
def test_each_subject_in_which_trials_differ_is_named(world: World) -> None:
    first = world.trial(0, payload=world.code(train="a", old="o"), hparams={"lr": 1}, seed=1)
    (world.folder / "old.py").unlink()
    second = world.trial(
        1,
        payload=world.code(train="b", new="n"),
        hparams={"lr": 2},
        seed=2,
        git={**GIT, "commit": "c" * 40, "is_clean": False},
        bundle={**BUNDLE, "version": "d" * 40},
        packages={"numpy": "2.2", "torch": "2.13.0", "pandas": "2.3"},
        python="3.13.1",
        driver="575.0",
        cuda="12.9",
        devices={"0": "NVIDIA H200"},
        image="sha256:1",
    )
    rows = world.rows(first, second)
    assert rows["configuration hyperparameters.lr"] == ["1", "2"]
    assert rows["seed trial"] == ["1", "2"]
    assert sorted(name for name in rows if name.startswith("files ")) == [
        "files new.py",
        "files old.py",
        "files train.py",
    ]
    assert rows["files old.py"][1] is None
    assert rows["git commit"] == ["a" * 40, "c" * 40]
    assert rows["git state"] == ["clean", "dirty"]
    assert rows["bundle version"] == ["b" * 40, "d" * 40]
    assert {name: values for name, values in rows.items() if name.startswith("packages")} == {
        "packages numpy": ["2.1", "2.2"],
        "packages nvidia-nccl-cu12": ["2.27.3", None],
        "packages pandas": [None, "2.3"],
    }
    assert rows["interpreter version"] == ["3.12.4", "3.13.1"]
    assert rows["CUDA"] == ["12.8", "12.9"]
    assert rows["driver"] == ["570.1", "575.0"]
    assert rows["devices"] == ["2 x NVIDIA H100", "1 x NVIDIA H200"]
    assert rows["image"] == ["none", "sha256:1"]
    # A build of PyTorch may contain NCCL without a package.
    assert rows["NCCL"] == ["2.27.3", None]


@pytest.mark.parametrize(
    ("fields", "subject"),
    [
        ({"git": {"commit": None, "is_clean": None, "problem": "git is not installed"}}, "git"),
        ({"bundle": None}, "bundle"),
        ({"packages": None}, "packages"),
        ({"driver": None}, "driver"),
        ({"launched": False}, "hosts"),
    ],
)
def test_what_is_not_known_is_never_equal(world: World, fields: dict[str, Any], subject: str) -> None:
    known = world.trial(0)
    one, other = world.trial(1, **fields), world.trial(2, **fields)
    for pair in ((known, one), (one, other)):
        found = world.compared(*pair)
        assert subject not in found.same
        assert [row.is_unknown for row in found.rows if row.subject == subject] == [True]


def test_private_values_are_not_shown_and_not_called_equal(world: World) -> None:
    store = world.store
    for value in ("hush-1", "hush-2"):
        document = {
            "entrypoint": "python train.py",
            "environment": {"variables": {"TOKEN": value, "MODE": value}, "public_variables": ["MODE"]},
        }
        masked, secrets = take_secrets(document)
        assert secrets == {"environment.variables.TOKEN": value}
        world.search.config = store.configs.put(masked, origins={}, secrets=value.encode()).config_id
        world.trial(len(store.trials.list()), hparams={})
    found = world.compared(1, 2)
    rows = {row.name: row for row in found.rows if row.subject == "configuration"}
    assert rows["environment.variables.TOKEN"].values == [None, None]
    assert rows["environment.variables.TOKEN"].is_unknown
    assert rows["environment.variables.MODE"].values == ['"hush-1"', '"hush-2"']
    rest = [dataclasses.asdict(row) for row in found.rows if not row.name.endswith("MODE")]
    assert "hush" not in json.dumps(rest)


def test_for_an_experiment_stands_its_best_trial_else_its_latest(world: World) -> None:
    best = world.trial(0, driver="1")
    world.trial(1, driver="2")
    world.search.validate(world.store.trials.get(best), loss=0.5)
    other = Search(world.store, name="other", run="r2")
    other.plan()
    second = World(other, world.folder)
    second.trial(0, driver="3")
    latest = second.trial(1, driver="4")
    experiments = [world.store.trials.get(one).experiment_id for one in (best, latest)]
    found = experiment_differences(world.store, RIGHTS, experiments)
    assert found.trials == [best, latest]
    assert [row.values for row in found.rows if row.subject == "driver"] == [["1", "4"]]
    assert "hyperparameters.lr" not in {row.name for row in found.rows}


# -- rights ----------------------------------------------------------------------------------------
def test_trials_and_experiments_of_other_dags_do_not_exist(world: World) -> None:
    own = world.trial(0)
    other = Search(world.store, name="hush", dag="secret")
    other.plan()
    hidden = World(other, world.folder).trial(0)
    api = Api(world.store, readable={"d"})
    assert api.get(f"/trials/{own}/provenance")["code"] is None
    experiments = [world.store.trials.get(one).experiment_id for one in (own, hidden)]
    for path, query in (
        (f"/trials/{hidden}/provenance", {}),
        ("/differences/trials", {"trial": [own, hidden]}),
        ("/differences/experiments", {"experiment": experiments}),
    ):
        answer = api.answer("GET", path, params=query)
        assert answer.status_code == 404, answer.text
        assert "hush" not in answer.text
        assert Api(world.store).answer("GET", path, params=query).status_code == 200


def test_files_are_for_users_who_may_read_the_code_of_the_dag(world: World) -> None:
    first, second = world.trial(0, payload=world.code(train="a")), world.trial(1, payload=world.code(train="b"))
    for may_read in (True, False):
        api = Api(world.store, code=may_read)
        assert (api.get(f"/trials/{first}/provenance")["files"] is not None) == may_read
        rows = {row["subject"]: row for row in api.get("/differences/trials", trial=[first, second])["rows"]}
        assert rows["files"]["is_unknown"] == (not may_read)
        assert not rows["code"]["is_unknown"]


@pytest.mark.parametrize("ids", [[], [1], [1, 1], list(range(1, 10))])
def test_a_comparison_takes_two_to_eight(world: World, ids: list[int]) -> None:
    world.trial(0)
    answer = Api(world.store).answer("GET", "/differences/trials", params={"trial": ids})
    assert answer.status_code in (400, 422), answer.text
