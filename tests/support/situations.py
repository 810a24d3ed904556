"""Random pools for the tests of the queue: small numbers, so that ties and full hosts are frequent."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from airflow_provider_dtrain.core.scheduling.model import GangRequest, Host, Placement, PoolOptions, RunningGang

HOUR = 3600.0
HELD = st.sampled_from([0.0, 600.0, 3 * HOUR, 9 * HOUR])
WAITED = st.sampled_from([0.0, 0.0, HOUR, 24 * HOUR, 30 * HOUR, 36 * HOUR, 50 * HOUR])
PRIORITIES = st.sampled_from([42, 42, 42, 10])
#: A crowd lies inside one group.
PARTIES = st.sampled_from([("", ""), ("a", ""), ("b", ""), ("a", "s"), ("b", "t"), ("b", "u")])
CAPS = st.sampled_from([None, None, 4, 8])
MOST_GANGS = st.sampled_from([None, None, 1, 2])


@dataclass(frozen=True)
class Situation:
    hosts: list[Host]
    requests: list[GangRequest]
    running: list[RunningGang]
    options: PoolOptions


@st.composite
def situations(
    draw,
    *,
    sizes=(4,),
    single_host=None,
    most_hosts=5,
    preemption=("off", "priority", "slices"),
    unequal=(False,),
    widths=(1, 2),
):
    """Draw a pool.

    :param unequal: values of ``allow_heterogeneous``
    :param widths: numbers of hosts of a running gang
    """
    count = draw(st.integers(1, most_hosts))
    names = {f"h{number}": draw(st.sampled_from(sizes)) for number in range(count)}
    free = {name: list(range(size)) for name, size in names.items()}
    running = []
    for number in range(draw(st.integers(0, 8))):
        gang = draw(_gangs(f"g{number}", number * 2, free, widths))
        if gang is not None:
            running.append(gang)
    state = st.sampled_from(["ready"] * 9 + ["draining"])
    hosts = [
        Host(name, size, frozenset(range(size)) - frozenset(free[name]), draw(state)) for name, size in names.items()
    ]
    sums = [5, 6, 7, 10] if True in unequal else []
    wanted = st.sampled_from([0, 1, 1, 2, 3, 4] if single_host else [0, 1, 1, 2, 3, 4, 8, 8, 12, *sums])
    # A cap belongs to a group or crowd: all its requests have the same cap.
    caps = draw(st.fixed_dictionaries({"": st.none(), "a": CAPS, "b": CAPS}))
    most = draw(st.fixed_dictionaries({"": st.none(), "s": MOST_GANGS, "t": MOST_GANGS, "u": MOST_GANGS}))
    number = draw(st.integers(0, 9))
    requests = [draw(_requests(f"r{n}", wanted, single_host, caps, most)) for n in range(number)]
    options = PoolOptions(
        allow_heterogeneous=draw(st.sampled_from(unequal)),
        reservations=draw(st.integers(0, 2)),
        preemption=draw(st.sampled_from(preemption)),
        fit=draw(st.sampled_from(["best", "worst"])),
    )
    return Situation(hosts, requests, running, options)


@st.composite
def full_pools(draw, *, preemption):
    """Draw a pool of small hosts with some free slots, and one request that is larger than every host."""
    hosts, running = [], []
    for number in range(draw(st.integers(4, 7))):
        slots, at = draw(st.sampled_from([1, 2, 3])), 0
        while at < slots and draw(st.integers(0, 2)):
            size = draw(st.integers(1, slots - at))
            parts = {f"h{number}": tuple(range(at, at + size))}
            running.append(
                RunningGang(
                    request_id=f"g{len(running)}",
                    placement=Placement(parts),
                    owner="trial",
                    sequence=len(running),
                    held_s=draw(st.sampled_from([9 * HOUR, 10 * HOUR])),
                    ran_s=draw(st.sampled_from([2000.0, 4000.0])),
                    is_preemptible=draw(st.integers(0, 5)) > 0,
                )
            )
            at += size
        hosts.append(Host(f"h{number}", slots, frozenset(range(at))))
    options = PoolOptions(
        reservations=1, preemption=draw(st.sampled_from(preemption)), allow_heterogeneous=draw(st.integers(0, 4)) > 0
    )
    return Situation(hosts, [GangRequest("r", draw(st.integers(4, 9)), sequence=99)], running, options)


@st.composite
def _gangs(draw, request_id, sequence, free, widths):
    is_wide = 2 in widths and draw(st.integers(0, 4)) == 0
    empty = [name for name, indices in free.items() if indices and indices == list(range(len(indices)))]
    if is_wide and len(empty) >= 2:
        slots = {name: tuple(free[name]) for name in empty[:2]}
    else:
        name = draw(st.sampled_from(sorted(free)))
        slots = {name: tuple(free[name][: draw(st.integers(1, 4))])}
    slots = {name: indices for name, indices in slots.items() if indices}
    if not slots:
        return None
    for name, indices in slots.items():
        free[name] = [index for index in free[name] if index not in indices]
    group, crowd = draw(PARTIES)
    return RunningGang(
        request_id=request_id, placement=Placement(slots), owner=f"trial {request_id}", priority=draw(PRIORITIES),
        sequence=draw(st.integers(-5, 20)), group=group, crowd=crowd, held_s=draw(HELD), waited_s=draw(WAITED),
        ran_s=draw(st.sampled_from([60.0, 2000.0, 4000.0])), is_preemptible=draw(st.integers(0, 3)) > 0,
        cost_s=draw(st.sampled_from([0.0, 0.0, 150.0])), is_ending=draw(st.integers(0, 5)) == 0,
        ends_in_s=draw(st.sampled_from([None, None, 600.0, 3000.0])),
    )  # fmt: skip


@st.composite
def _requests(draw, request_id, wanted, single_host, caps, most):
    group, crowd = draw(PARTIES)
    return GangRequest(
        request_id, draw(wanted), draw(PRIORITIES),
        is_single_host=draw(st.booleans()) if single_host is None else single_host,
        excluded_hosts=frozenset(draw(st.sampled_from([(), (), (), ("h0",)]))),
        sequence=draw(st.integers(0, 20)), group=group, weight=draw(st.sampled_from([1.0, 1.0, 2.0])),
        max_slots=caps[group], crowd=crowd, max_gangs=most[crowd],
        held_s=draw(HELD), waited_s=draw(WAITED),
        max_runtime_s=draw(st.sampled_from([None, None, 500.0, 2500.0])), is_preemptible=draw(st.booleans()),
    )  # fmt: skip
