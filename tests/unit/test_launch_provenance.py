"""Facts of a launch as hosts answer them: bounded and without control characters before they are stored."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from airflow_provider_dtrain.core.launch.containers import ContainerHost
from airflow_provider_dtrain.engine.attempt.provenance import record_images, record_launch


class Recorded:
    """Runtime of a follower that keeps what it would store."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.attempt_id, self.watch = 7, 3
        self.store = SimpleNamespace(provenance=SimpleNamespace(set_launch="set_launch", add_facts="add_facts"))

    async def db(self, *call: Any) -> None:
        self.calls.append(call)


ANSWER = {
    "python": "3.12.4",
    "executable": "/usr/bin/python3",
    "cuda": "12.8",
    "driver": "570.1",
    "packages": {"a": "1"},
}
VIEW: Any = SimpleNamespace(placement={"h": (0, 1)})


def job(environment: Any = None) -> Any:
    return SimpleNamespace(device_names={"h": {0: "H100", 1: "H100"}}, environment=environment)


async def recorded(answer: dict[str, Any], **more: Any) -> Any:
    rt: Any = Recorded()
    await record_launch(rt, VIEW, job(**more), {"h": answer}, {})
    ((_, attempt, watch, lock, hosts),) = rt.calls
    assert (attempt, watch) == (7, 3)
    return lock, hosts["h"]


async def test_the_facts_of_a_host_are_those_of_its_answer_and_of_its_slots() -> None:
    lock, facts = await recorded(ANSWER, environment=SimpleNamespace(path="r.lock", digest="d"))
    assert lock == {"path": "r.lock", "digest": "d"}
    assert facts == {**ANSWER, "devices": {"0": "H100", "1": "H100"}, "image": None}


async def test_texts_of_a_host_are_visible_and_short() -> None:
    _, facts = await recorded(
        {**ANSWER, "driver": "\x1b[2J", "executable": "x" * 70_000, "packages": {"a\u202e": "\x00"}}
    )
    assert facts["driver"] == "\\x1b[2J"
    assert len(facts["executable"]) == 256
    assert facts["packages"] == {"a\\u202e": "\\x00"}


async def test_what_a_host_does_not_answer_is_not_known() -> None:
    _, facts = await recorded({"python": "3.12.4", "executable": "/usr/bin/python3"})
    assert (facts["packages"], facts["cuda"], facts["driver"]) == (None, None, None)


async def test_the_interpreter_of_an_image_comes_with_the_answer_to_prepare() -> None:
    rt: Any = Recorded()
    image = ContainerHost(
        runtime="podman", image="i", digest="i@sha256:1", uid=0, gid=0, state_dir="/s", program="/p", libraries="/l"
    )
    await record_launch(rt, VIEW, job(), {"h": ANSWER}, {"h": image})
    await record_images(rt, {"h": {"state": "prepared", "image": {**ANSWER, "python": "3.11.2"}}})
    await record_images(rt, {"h": {"state": "prepared"}})
    launched, prepared = (call[-1]["h"] for call in rt.calls)
    assert launched == {"devices": {"0": "H100", "1": "H100"}, "driver": "570.1", "image": "i@sha256:1"}
    assert (prepared["python"], prepared["packages"]) == ("3.11.2", {"a": "1"})
