"""Leases that are held over a maintenance."""

from __future__ import annotations

from datetime import timedelta

from airflow_provider_dtrain.store.database import tables


def test_a_hold_lasts_until_its_time_and_says_whose_it_is(store, clock):
    assert (store.maintenance.get(), store.maintenance.left_s(), store.maintenance.leases_left_s()) == (None, 0.0, 0.0)
    store.maintenance.set(clock.now + timedelta(hours=1), by="ann", reason="new database")
    clock.advance(600)
    found = store.maintenance.get()
    assert (found.by, found.reason, store.maintenance.left_s()) == ("ann", "new database", 3000.0)
    clock.advance(3001)
    assert (store.maintenance.get(), store.maintenance.left_s(), store.maintenance.leases_left_s()) == (None, 0.0, 0.0)


def test_a_host_that_was_told_keeps_the_long_lease_after_the_hold_was_ended(store, clock):
    store.maintenance.set(clock.now + timedelta(hours=2), by="ann")
    store.maintenance.set(clock.now + timedelta(hours=1), by="ann")
    assert store.maintenance.left_s() == 3600.0
    assert store.maintenance.end(by="bob")
    assert not store.maintenance.end(by="bob")
    assert (store.maintenance.left_s(), store.maintenance.leases_left_s(), store.maintenance.leases_left_s(90.0)) == (
        0.0,
        7200.0,
        7290.0,
    )
    store.maintenance.leases_shortened()
    assert store.maintenance.leases_left_s(90.0) == 0.0
    with store.db.engine.connect() as connection:
        noted = [(row.by, row.action) for row in connection.execute(tables.audit.select())]
    assert noted == [("ann", "hold"), ("ann", "hold"), ("bob", "hold ended")]
