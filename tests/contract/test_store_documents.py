"""Templates, configurations, payloads, hosts and pools, on each database."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa

from airflow_provider_dtrain.core.scheduling.model import PoolOptions
from airflow_provider_dtrain.engine.submission.assembly import choose_pool
from airflow_provider_dtrain.errors import (
    ConfigError,
    ConflictError,
    IllegalTransitionError,
    NotFoundError,
    StoreError,
    UserError,
)
from airflow_provider_dtrain.store.configs import MODELS, model_of
from airflow_provider_dtrain.store.database import tables
from airflow_provider_dtrain.store.records.trials import SlotRecord
from testbed.stores import host


@pytest.mark.each_change
def test_a_template_keeps_all_its_versions(store):
    assert store.templates.set("base", "a: 1", by="ann") == 1
    assert store.templates.set("base", "a: 2", by="bob") == 2
    assert (store.templates.get("base").version, store.templates.get("base").text) == (2, "a: 2")
    store.templates.remove("base", by="cy")
    assert store.templates.list() == []
    with pytest.raises(NotFoundError, match="There is no template 'base'"):
        store.templates.get("base")
    assert store.templates.set("base", "a: 3", by="ann") == 4
    versions = store.templates.versions("base")
    assert [(v.version, v.set_by, v.removed) for v in versions] == [
        (1, "ann", False), (2, "bob", False), (3, "cy", True), (4, "ann", False),
    ]  # fmt: skip
    assert [t.name for t in store.templates.list()] == ["base"]


@pytest.mark.parametrize("name", ["", "../x", "a..b", "-a", "a b", "a" * 64, "a\n"])
def test_a_name_outside_the_rule_is_refused(store, name):
    with pytest.raises(UserError, match="1 to 63 letters"):
        store.templates.set(name, "a: 1", by="me")
    with pytest.raises(UserError, match="1 to 63 letters"):
        store.hosts.add(host(name))


@pytest.mark.each_change
def test_the_same_configuration_is_stored_once(store):
    document = {"b": [1, 2.5, None, True], "a": {"name": "größe", "x": "\u0000"}}
    first = store.configs.put(document, origins={"a": "config"}, template="t", template_version=3)
    again = store.configs.put(
        {"a": document["a"], "b": document["b"]}, origins={"a": "config"}, template="t", template_version=3
    )
    other = store.configs.put(document, origins={"a": "template"}, template="t", template_version=3)
    assert first == again == store.configs.get(first.config_id)
    assert first.document == document
    assert other.config_id != first.config_id


def test_a_configuration_is_validated_once(store):
    stored = store.configs.put({"name": "validated once", "entrypoint": "train:run"}, origins={})
    assert model_of(store.configs.get(stored.config_id)) is model_of(stored)
    assert model_of(stored).name == "validated once"
    other = store.configs.put({"name": "another", "entrypoint": "train:run"}, origins={})
    assert model_of(other).name == "another"


def test_a_process_keeps_a_bounded_number_of_validated_configurations(store):
    first, *_ = [
        store.configs.put({"name": f"kept {n}", "entrypoint": "train:run"}, origins={}) for n in range(MODELS + 1)
    ]
    model = model_of(first)
    for config_id in range(first.config_id + 1, first.config_id + MODELS + 1):
        assert model_of(store.configs.get(config_id)) is not model
    assert model_of(first) is not model
    assert model_of(first) == model


def test_a_configuration_that_is_not_valid_is_refused_each_time(store):
    stored = store.configs.put({"entrypoint": 5}, origins={})
    for _ in range(2):
        with pytest.raises(ConfigError, match="entrypoint"):
            model_of(stored)


@pytest.mark.each_change
def test_secrets_are_opaque_bytes_and_part_of_the_identity(store):
    first = store.configs.put({}, origins={}, secrets=b"\x00\xff")
    assert store.configs.get(first.config_id).secrets == b"\x00\xff"
    assert store.configs.put({}, origins={}, secrets=b"x").config_id != first.config_id
    with pytest.raises(NotFoundError):
        store.configs.get(10**6)


def test_a_payload_is_stored_once(store):
    assert not store.payloads.has("d" * 64)
    store.payloads.put("d" * 64, b"\x00" * 1000)
    store.payloads.put("d" * 64, b"\x00" * 1000)
    assert store.payloads.get("d" * 64) == b"\x00" * 1000
    with pytest.raises(NotFoundError, match="Run the task again"):
        store.payloads.get("e" * 64)


@pytest.mark.each_change
def test_a_host_comes_back_as_it_was_registered(store):
    record = host("h1", 2, conn_id="ssh_h1", facts={"cpu_count": 8, "load": 0.5}, host_key="ssh-ed25519 AAAA")
    store.hosts.add(record, by="ann")
    assert store.hosts.get("h1") == record
    assert store.hosts.list() == store.hosts.list("gpus") == [record]
    assert store.hosts.list("other") == []
    with pytest.raises(NotFoundError, match="Hosts: h1"):
        store.hosts.get("h2")


def test_a_name_or_a_machine_is_registered_once(store):
    store.hosts.add(host("h1"))
    with pytest.raises(ConflictError, match="registered already"):
        store.hosts.add(host("h1", machine_id="other"))
    with pytest.raises(ConflictError, match="same machine as host 'h1'"):
        store.hosts.add(replace(host("h1"), name="h2"))


def test_a_pool_holds_one_slot_type(store):
    store.hosts.add(host("h1"))
    with pytest.raises(ConflictError, match="has cuda slots"):
        store.hosts.add(host("h2", slot_type="cpu"))
    assert [record.name for record in store.hosts.list()] == ["h1"]


def test_the_variables_of_a_host_are_changed_one_by_one_and_survive_a_probe(store):
    store.hosts.add(host("a"))
    assert store.hosts.get("a").variables is None
    store.hosts.set_variables("a", {"HF_HOME": "/data", "http_proxy": "http://u:secret@p:1", "X": ""}, by="me")
    store.hosts.set_variables("a", {"HF_HOME": "/hf", "http_proxy": None})
    store.hosts.update_facts("a", {"python": "3.12"})
    assert store.hosts.get("a").variables == {"HF_HOME": "/hf", "X": ""}
    with store.db.engine.connect() as connection:
        rows = str(connection.execute(sa.select(tables.audit)).all())
    assert "host variables" in rows
    assert "secret" not in rows
    store.hosts.set_variables("a", {"HF_HOME": None, "X": None})
    assert store.hosts.get("a").variables is None
    with pytest.raises(NotFoundError):
        store.hosts.set_variables("b", {"X": "1"})


def test_the_local_host_is_added_only_to_an_empty_store(store):
    local = host("local", 2, pool="local", slot_type="cpu")
    assert store.hosts.ensure_local(local)
    assert not store.hosts.ensure_local(local)
    assert [record.name for record in store.hosts.list()] == ["local"]


def test_pools_have_hosts_once_one_is_registered_in_them(store):
    assert not store.hosts.exist()
    assert store.hosts.pools_with_hosts() == set()
    store.hosts.add(host("local", pool="local", slot_type="cpu"))
    store.hosts.add(host("a", pool="big"))
    store.hosts.add(host("b", pool="big"))
    assert store.hosts.exist()
    assert store.hosts.pools_with_hosts() == {"big", "local"}
    assert store.hosts.pools_with_hosts(without="local") == {"big"}


def test_the_pool_of_a_configuration_that_names_none_is_the_only_one_with_hosts(store, monkeypatch):
    # Each trial of a search asks, so the answer must not depend on the number of hosts.
    monkeypatch.setattr(type(store.hosts), "list", None)
    assert choose_pool(store, None) == "local"
    store.hosts.add(host("local", pool="local", slot_type="cpu"))
    store.hosts.add(host("a", pool="big"))
    assert choose_pool(store, None) == "big"
    assert choose_pool(store, "local") == "local"
    store.hosts.add(host("b", pool="small"))
    with pytest.raises(NotFoundError, match=r"there are several: big, local, small\."):
        choose_pool(store, None)
    store.hosts.add(host("c", pool="default"))
    assert choose_pool(store, None) == "default"


def test_a_state_that_may_not_follow_is_refused(store):
    store.hosts.add(host("h1"))
    store.hosts.set_state("h1", "disabled", "broken fan")
    with pytest.raises(IllegalTransitionError):
        store.hosts.set_state("h1", "lost")
    assert (store.hosts.get("h1").state, store.hosts.get("h1").state_reason) == ("disabled", "broken fan")


def test_a_probe_keeps_switches_and_refuses_to_lose_held_slots(store, submit, start):
    store.hosts.add(host("h1", 2))
    store.hosts.set_slot_enabled("h1", 1, False)
    three = [SlotRecord(index=i, device=f"new-{i}") for i in range(3)]
    store.hosts.update_facts("h1", {"torch": "2.13"}, boot_id="b2", slots=three)
    record = store.hosts.get("h1")
    assert (record.facts, record.boot_id) == ({"torch": "2.13"}, "b2")
    assert [(s.device, s.enabled) for s in record.slots] == [("new-0", True), ("new-1", False), ("new-2", True)]
    start(submit(slots=2))
    with pytest.raises(ConflictError, match="a gang holds them"):
        store.hosts.update_facts("h1", {}, slots=three[:2])
    with pytest.raises(NotFoundError, match="no slot 9"):
        store.hosts.mark_slot("h1", 9, "stuck")


def test_two_hosts_never_become_one_machine(store):
    store.hosts.add(host("h1"))
    store.hosts.add(host("h2"))
    with pytest.raises(ConflictError, match="same machine as 'h2'"):
        store.hosts.update_facts("h2", {}, machine_id="m-h1", boot_id="b-h1")


def test_a_held_host_is_removed_only_by_force(store, submit, start):
    store.hosts.add(host("h1", 2))
    ticket = submit(slots=2)
    start(ticket)
    with pytest.raises(ConflictError, match=f"trial {ticket.trial_id}"):
        store.hosts.remove("h1")
    ended = store.hosts.remove("h1", force=True, by="ann")
    assert [view.attempt_id for view in ended] == [ticket.attempt_id]
    assert store.hosts.list() == []
    assert store.hosts.slots() == []
    view = store.attempts.get(ticket.attempt_id)
    assert (view.held_hosts, view.allocation_state) == ((), "released")


def test_slots_are_shown_with_their_holder(store, submit, start, clock):
    store.hosts.add(host("h1", 2))
    ticket = submit(slots=1)
    start(ticket)
    held, free = sorted(store.hosts.slots("gpus"), key=lambda slot: slot.allocation_id is None)
    assert (held.trial_id, held.experiment, held.held_since) == (ticket.trial_id, "e", clock.now)
    assert (free.allocation_id, free.enabled, free.state) == (None, True, "ready")


def test_pool_options_are_changed_one_by_one(store):
    store.hosts.add(host("h1"))
    before = store.pools.get("gpus")
    assert (before.slot_type, before.options) == ("cuda", PoolOptions())
    store.pools.set("gpus", fit="worst", defaults={"resources": {"priority": 50}})
    changed = store.pools.set("gpus", allow_heterogeneous=True)
    assert changed.options == PoolOptions(fit="worst", allow_heterogeneous=True)
    assert changed.defaults == {"resources": {"priority": 50}}
    assert changed.version > before.version
    assert [pool.name for pool in store.pools.list()] == ["gpus"]


def test_a_pool_in_use_is_not_removed(store):
    store.hosts.add(host("h1"))
    with pytest.raises(ConflictError, match="hosts h1"):
        store.pools.remove("gpus")
    store.hosts.remove("h1")
    store.pools.remove("gpus")
    with pytest.raises(NotFoundError):
        store.pools.get("gpus")


@pytest.mark.each_change
@pytest.mark.parametrize("number", [2**63, 10**30])
def test_a_number_that_no_column_holds_is_an_error_of_the_store(store, number):
    store.hosts.add(host("h1", 1))
    with pytest.raises(StoreError):
        store.hosts.mark_slot("h1", number, "stuck")
