from __future__ import annotations

import json
from itertools import permutations

import pytest

from airflow_provider_dtrain.core.launch.plan import (
    HostFacts,
    LaunchFacts,
    NetworkChoice,
    build_plans,
    choose_network,
    connect_targets,
    pairs_to_check,
)
from airflow_provider_dtrain.core.scheduling.model import Placement
from airflow_provider_dtrain.errors import ConfigError, NetworkPathError

PLACEMENT = Placement({"b": (0, 1), "a": (4, 6), "c": (0, 1, 2)})


def facts(**fields) -> LaunchFacts:
    return LaunchFacts(**({"run": "t1.2.7", "store": "s", "token": 7, "argv": ["python", "train.py"]} | fields))


def test_ranks_are_numbered_host_by_host_from_the_one_with_most_slots_then_by_name():
    plans = build_plans(PLACEMENT, facts())
    assert list(plans) == ["c", "a", "b"]
    assert {host: [rank["rank"] for rank in plan["ranks"]] for host, plan in plans.items()} == {
        "c": [0, 1, 2],
        "a": [3, 4],
        "b": [5, 6],
    }
    assert {host: [rank["slot"] for rank in plan["ranks"]] for host, plan in plans.items()} == {
        host: list(slots) for host, slots in PLACEMENT.slots.items()
    }
    assert [(plan["group_rank"], plan["group_world_size"], plan["world_size"]) for plan in plans.values()] == [
        (0, 3, 7),
        (1, 3, 7),
        (2, 3, 7),
    ]


def test_the_order_of_the_placement_does_not_matter():
    plans = [build_plans(Placement(dict(items)), facts()) for items in permutations(PLACEMENT.slots.items())]
    assert all(other == plans[0] and list(other) == list(plans[0]) for other in plans)


def test_a_plan_is_plain_json_with_every_field_of_the_wire_format():
    hosts = {"a": HostFacts(devices={4: "GPU-4", 6: "GPU-6"}, python="/usr/bin/python3.11", environment="e")}
    plan = build_plans(Placement({"a": (4, 6)}), facts(hosts=hosts, port_range=(4000, 4010), payload="p"))["a"]
    assert json.loads(json.dumps(plan)) == plan
    assert set(plan) == {
        *("protocol", "run", "store", "token", "launch", "host", "group_rank", "group_world_size", "world_size"),
        *("ranks", "argv", "per_host"),
        *("python", "environment", "setup", "env", "payload", "library", "port_range", "grace_s"),
        *("orphan_timeout_s", "prepare_timeout_s", "timeout_s", "log_limit_bytes", "cpu_slots"),
        *("sampling_interval_s", "warm"),
    }
    assert [rank["device"] for rank in plan["ranks"]] == ["GPU-4", "GPU-6"]
    assert plan["environment"] == "e"
    assert (plan["python"], plan["port_range"], plan["world_size"]) == ("/usr/bin/python3.11", [4000, 4010], 2)


def test_a_plan_names_the_variables_that_a_warm_parent_does_not_get():
    placement = Placement({"a": (0,)})
    assert build_plans(placement, facts())["a"]["warm"] is None
    plan = build_plans(placement, facts(warm_idle_s=30.0, private={"B": "2", "A": "1"}))["a"]
    assert plan["warm"] == {"idle_s": 30.0, "private": ["A", "B"]}


def test_a_request_without_slots_becomes_one_rank_without_a_slot():
    plan = build_plans(Placement({"a": ()}), facts())["a"]
    assert [(rank["rank"], rank["slot"], rank["device"]) for rank in plan["ranks"]] == [(0, -1, None)]
    assert plan["world_size"] == 1


def test_each_host_is_told_its_own_interface_and_a_users_setting_stays():
    network = NetworkChoice(master_addr="10.0.0.1", interfaces={"a": "eth0", "b": "ib0"})
    placement = Placement({"a": (0,), "b": (0,)})
    plans = build_plans(placement, facts(network=network))
    names = {host: [plan["env"][f"{lib}_SOCKET_IFNAME"] for lib in ("NCCL", "GLOO")] for host, plan in plans.items()}
    assert names == {"a": ["=eth0", "eth0"], "b": ["=ib0", "ib0"]}
    own = build_plans(placement, facts(network=network, variables={"NCCL_SOCKET_IFNAME": "bond", "X": "1"}))
    assert own["b"]["env"]["NCCL_SOCKET_IFNAME"] == "bond"
    assert own["b"]["env"]["GLOO_SOCKET_IFNAME"] == "ib0"
    assert own["b"]["env"]["X"] == "1"


def test_variables_of_a_host_are_between_what_was_found_and_what_the_configuration_sets():
    network = NetworkChoice(master_addr="10.0.0.1", interfaces={"a": "eth0", "b": "ib0"})
    hosts = {"a": HostFacts(variables={"GLOO_SOCKET_IFNAME": "bond", "HF_HOME": "/data/hf", "X": "host"})}
    plans = build_plans(Placement({"a": (0,), "b": (0,)}), facts(hosts=hosts, network=network, variables={"X": "mine"}))
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HF_HOME", "X")
    assert [plans["a"]["env"].get(name) for name in names] == ["bond", "=eth0", "/data/hf", "mine"]
    assert [plans["b"]["env"].get(name) for name in names] == ["ib0", "=ib0", None, "mine"]


def test_variables_that_belong_to_the_contract_are_refused_by_name_and_all_at_once():
    variables = {"RANK": "0", "OK": "1", "MASTER_PORT": "1", "BAD=NAME": "", "NUL": "a\0b", "LONG": "x" * 140_000}
    with pytest.raises(ConfigError) as caught:
        build_plans(PLACEMENT, facts(variables=variables))
    paths = {problem.path for problem in caught.value.problems}
    assert paths == {f"environment.variables.{name}" for name in ("RANK", "MASTER_PORT", "BAD=...", "NUL", "LONG")}


def test_all_pairs_are_checked_up_to_16_hosts_and_a_ring_and_rank_0_above():
    few = [f"h{n}" for n in range(16)]
    assert len(pairs_to_check(few)) == 16 * 15
    many = [f"h{n}" for n in range(17)]
    pairs = pairs_to_check(many)
    assert len(pairs) == len(set(pairs)) == 2 * (17 + 16 - 2)
    assert {("h0", "h9"), ("h9", "h0"), ("h4", "h5"), ("h5", "h4"), ("h16", "h0")} <= set(pairs)
    assert ("h4", "h6") not in pairs
    assert pairs_to_check(["a"]) == []
    assert pairs_to_check(["a", "b"]) == [("a", "b"), ("b", "a")]


class Net:
    """Hosts with addresses, and which connections between them fail."""

    def __init__(self, **hosts):
        self.order = list(hosts)
        self.listens = {
            host: {
                "port": 4000 + number,
                "addresses": [
                    {"address": a, "interface": i, "speed_mbps": s, "mtu": m, "family": "inet6" if ":" in a else "inet"}
                    for a, i, s, m in rows
                ],
            }
            for number, (host, rows) in enumerate(hosts.items())
        }
        self.closed: set[tuple[str, str]] = set()

    def choose(self, **options) -> NetworkChoice:
        targets = connect_targets(self.order, self.listens)
        connects = {host: {"results": [self.result(host, t) for t in targets[host]]} for host in self.order}
        return choose_network(self.order, self.listens, connects, **options)

    def result(self, source, target):
        """Connections leave by the interface in the same /24, else by the host's first one."""
        rows = self.listens[source]["addresses"]
        prefix = target["address"].rpartition(".")[0]
        row = next((row for row in rows if row["address"].startswith(f"{prefix}.")), rows[0])
        ok = (source, target["address"]) not in self.closed
        end = {"source_address": row["address"], "interface": row["interface"]} if ok else {}
        return {**target, "ok": ok, "error": None if ok else "timed out", **end}


def two_networks() -> Net:
    return Net(
        a=[("10.0.0.1", "eth0", 1000, 1500), ("10.1.0.1", "ib0", 100_000, 4092)],
        b=[("10.0.0.2", "eno1", 1000, 1500), ("10.1.0.2", "ib1", 100_000, 4092)],
    )


def test_a_gang_on_one_host_stays_on_loopback():
    assert choose_network(["a"], {}, {}) == NetworkChoice(master_addr="127.0.0.1", interfaces={"a": "lo"})


def test_the_fastest_network_wins_and_interface_names_may_differ():
    assert two_networks().choose() == NetworkChoice(master_addr="10.1.0.1", interfaces={"a": "ib0", "b": "ib1"})


def test_the_slowest_link_of_a_network_counts_then_the_mtu_then_the_name():
    net = two_networks()
    net.listens["b"]["addresses"][1]["speed_mbps"] = 100
    assert net.choose().master_addr == "10.0.0.1"
    net.listens["b"]["addresses"][1]["speed_mbps"] = net.listens["a"]["addresses"][1]["speed_mbps"] = 1000
    assert net.choose().master_addr == "10.1.0.1"
    net.listens["b"]["addresses"][1]["mtu"] = 1500
    assert net.choose().master_addr == "10.0.0.1"


def test_a_network_that_one_host_does_not_reach_is_not_used():
    net = two_networks()
    net.closed = {("b", "10.1.0.1")}
    assert net.choose() == NetworkChoice(master_addr="10.0.0.1", interfaces={"a": "eth0", "b": "eno1"})


def test_the_way_back_has_to_work_as_well():
    net = two_networks()
    net.closed = {("a", "10.1.0.2")}
    assert net.choose().master_addr == "10.0.0.1"


def test_the_way_between_two_other_hosts_has_to_work_as_well():
    net = Net(
        a=[("10.0.0.1", "e", 10, 1500), ("10.1.0.1", "i", 99, 1500)],
        b=[("10.0.0.2", "e", 10, 1500), ("10.1.0.2", "i", 99, 1500)],
        c=[("10.0.0.3", "e", 10, 1500), ("10.1.0.3", "i", 99, 1500)],
    )
    assert net.choose().master_addr == "10.1.0.1"
    net.closed = {("b", "10.1.0.3")}
    assert net.choose().master_addr == "10.0.0.1"


def test_hosts_need_no_common_subnet():
    net = Net(a=[("10.0.0.1", "eth0", 10, 1500)], b=[("10.7.0.2", "eth5", 10, 1500)])
    assert net.choose() == NetworkChoice(master_addr="10.0.0.1", interfaces={"a": "eth0", "b": "eth5"})


def test_an_address_that_two_hosts_share_is_no_candidate():
    shared = ("172.17.0.1", "docker9", 100_000, 9000)
    net = Net(a=[("10.0.0.1", "eth0", 10, 1500), shared], b=[("10.0.0.2", "eth0", 10, 1500), shared])
    assert net.choose().master_addr == "10.0.0.1"
    targets = connect_targets(net.order, net.listens)
    assert targets == {"a": [{"address": "10.0.0.2", "port": 4001}], "b": [{"address": "10.0.0.1", "port": 4000}]}
    with pytest.raises(NetworkPathError, match="no address that the other hosts"):
        Net(a=[shared], b=[shared]).choose()


def test_loopback_and_link_local_addresses_are_no_candidates():
    local = [("127.0.0.1", "lo", 10, 1500), ("169.254.1.1", "eth9", 10, 1500), ("fe80::1", "eth9", 10, 1500)]
    with pytest.raises(NetworkPathError, match="Host 'a' has no address"):
        Net(a=local, b=[("10.0.0.2", "eth0", 10, 1500)]).choose()


def test_an_explicit_interface_wins_over_a_faster_one():
    net = two_networks()
    net.listens["b"]["addresses"][0]["interface"] = "eth0"
    choice = net.choose(network_interface="eth0")
    assert choice == NetworkChoice(master_addr="10.0.0.1", interfaces={"a": "eth0", "b": "eth0"})


def test_an_explicit_interface_that_a_host_lacks_names_host_and_interfaces():
    with pytest.raises(NetworkPathError, match="Host 'b' has no interface 'eth0'.*eno1, ib1") as caught:
        two_networks().choose(network_interface="eth0")
    assert caught.value.host == "b"


def test_no_way_names_the_pair_the_address_and_the_port():
    net = Net(a=[("10.0.0.1", "eth0", 10, 1500)], b=[("10.0.0.2", "eth0", 10, 1500)])
    net.closed = {("b", "10.0.0.1")}
    with pytest.raises(NetworkPathError, match="'b' cannot reach host 'a' at 10.0.0.1 port 4000: timed out") as caught:
        net.choose()
    assert caught.value.host == "b"
    net.closed = {("a", "10.0.0.2")}
    with pytest.raises(NetworkPathError, match="'a' cannot reach host 'b' at 10.0.0.2 port 4001"):
        net.choose()


@pytest.mark.parametrize("cut_off", ["a", "b", "c"])
def test_the_host_that_most_failures_have_in_common_is_blamed(cut_off):
    addresses = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3", "d": "10.0.0.4"}
    net = Net(**{host: [(address, "eth0", 10, 1500)] for host, address in addresses.items()})
    net.closed = {(host, addresses[cut_off]) for host in addresses}
    with pytest.raises(NetworkPathError) as caught:
        net.choose()
    assert caught.value.host == cut_off


def test_ipv4_is_taken_before_ipv6_on_the_same_link():
    both = {"a": ("10.0.0.1", "fd00::1"), "b": ("10.0.0.2", "fd00::2")}
    net = Net(**{host: [(address, "eth0", 10, 1500) for address in pair] for host, pair in both.items()})
    assert net.choose().master_addr == "10.0.0.1"
