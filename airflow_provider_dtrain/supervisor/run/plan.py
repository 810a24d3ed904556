"""Plan of a run and context of its trial, checked field by field."""

from __future__ import annotations

import re
from typing import Any

from ..fields import Fields
from ..limits import PROTOCOL
from ..machine.container_runtime import RUNTIMES
from ..names import CARRIED, DEVICE, DIGEST, ENV_NAME, MODULE, WORD, Json


def check_plan(document: Any) -> Json:
    """Return a launch plan with every field checked and every default filled in.

    :raises Refused: ``bad_plan``, naming the field
    """
    plan = Fields(document, "plan")
    checked: Json = {
        "protocol": plan.integer("protocol", 1, PROTOCOL, default=PROTOCOL),
        "run": plan.run(),
        "store": plan.text("store", WORD),
        "token": plan.integer("token", 0, 10**18),
        #: Distinguishes a launch from an earlier one of the same name that a store restored from a backup has lost.
        "launch": plan.text("launch", WORD, default=None),
        "host": plan.text("host", limit=128, default=""),
        "world_size": plan.integer("world_size", 1, 1 << 20),
        "group_rank": plan.integer("group_rank", 0, 1 << 20, default=0),
        "group_world_size": plan.integer("group_world_size", 1, 1 << 20, default=1),
        "argv": plan.texts("argv", least=1, length=128 << 10),
        #: The process of the first rank starts the other ranks of this host itself.
        "per_host": plan.flag("per_host", default=False),
        "python": plan.text("python", default=None),
        #: Script in the code whose variables the ranks get.
        "setup": plan.text("setup", default=None),
        #: Environment of the interpreter, which must stay while the run lasts.
        "environment": plan.text("environment", DIGEST, default=None),
        "env": plan.environment("env"),
        "payload": plan.text("payload", DIGEST, default=None),
        "library": plan.text("library", DIGEST, default=None),
        "port_range": plan.port_range("port_range"),
        "grace_s": plan.number("grace_s", 0, 86400, default=30),
        "orphan_timeout_s": plan.number("orphan_timeout_s", 0, 10**8, default=900),
        "prepare_timeout_s": plan.number("prepare_timeout_s", 0.01, 86400, default=120),
        "timeout_s": plan.number("timeout_s", 0.01, 10**9, default=None),
        "log_limit_bytes": plan.integer("log_limit_bytes", 1 << 16, 1 << 50, default=256 << 20),
        "cpu_slots": plan.flag("cpu_slots", default=False),
        #: Names the folder with the previous attempt's files, which is inside the run's folder; None = no such files.
        "carried": plan.text("carried", CARRIED, default=None),
        #: 0: system metrics are not sampled.
        "sampling_interval_s": plan.number("sampling_interval_s", 0, 86400, default=0),
    }
    checked["container"] = check_container(plan)
    checked["warm"] = check_warm(plan)
    checked["ranks"] = check_ranks(plan, checked["world_size"])
    if not checked["argv"][0]:
        raise plan.bad("argv.0", "must not be empty")
    if checked["token"] != int(checked["run"].rpartition(".")[2]):
        raise plan.bad("token", f"must be the last part of the run's name {checked['run']}, got {checked['token']}")
    return checked


def check_context(values: Any) -> Json:
    """Return the values of a trial, with those checked and filled in that the supervisor reads itself.

    :raises Refused: ``bad_plan``, naming the field
    """
    context = Fields(values or {}, "context")
    return {
        **context.values,
        "attempt": context.integer("attempt", 1, 10**9, default=1),
        "max_restarts": context.integer("max_restarts", 0, 10**9, default=0),
        "hparams": context.inner("hparams", default={}).values,
        "seed": context.integer("seed", 0, 1 << 63, default=0),
        "latest_checkpoint": context.text("latest_checkpoint", default=None),
        "checkpoint_dir": context.text("checkpoint_dir", default=None),
    }


def check_container(plan: Fields) -> Json | None:
    """Return the checked container in which the ranks of this host run, None if they run without one."""
    if plan.values.get("container") is None:
        return None
    container = plan.inner("container")
    return {
        "runtime": container.text("runtime", re.compile("|".join(RUNTIMES))),
        "argv": container.texts("argv", least=1, length=128 << 10),
        "modules": container.texts("modules", MODULE, limit=256, default=[]),
        #: Folders that the runtime mounts over, below the work folder.
        "folders": container.texts("folders", limit=256, default=[]),
    }


def check_warm(plan: Fields) -> Json | None:
    """Return how ranks are forked from a warm parent, None if they are executed."""
    if plan.values.get("warm") is None:
        return None
    warm = plan.inner("warm")
    return {
        "idle_s": warm.number("idle_s", 0.1, 86400, default=600),
        #: Variables whose values the parent does not get.
        "private": warm.texts("private", ENV_NAME, limit=10_000, default=[]),
    }


def check_ranks(plan: Fields, world_size: int) -> list[Json]:
    """Return the checked ranks of this host. Each rank, local rank and slot occurs once."""
    ranks: list[Json] = []
    for index, item in enumerate(plan.items("ranks", least=1, limit=1024)):
        rank = Fields(item, f"plan.ranks.{index}")
        found = {
            "rank": rank.integer("rank", 0, world_size - 1),
            "local_rank": rank.integer("local_rank", 0, 1023, default=index),
            "slot": rank.integer("slot", -1, 65535),
            "device": rank.text("device", DEVICE, default=None),
            "visible_devices": rank.texts("visible_devices", DEVICE, limit=1024, default=[]),
        }
        if found["device"] is not None and found["device"] not in found["visible_devices"]:
            raise rank.bad("visible_devices", f"must contain the rank's own device {found['device']}")
        for name in ("rank", "local_rank", "slot"):
            if found[name] != -1 and any(other[name] == found[name] for other in ranks):
                raise rank.bad(name, f"must be unique, but {found[name]} is used twice")
        ranks.append(found)
    return ranks


def plan_slots(plan: Json) -> list[int]:
    """Return the slots that a plan uses. The rank of a 0-slot request uses none."""
    ranks = plan.get("ranks")
    return sorted({rank["slot"] for rank in ranks if rank["slot"] >= 0}) if isinstance(ranks, list) else []


def slot_devices(plan: Json) -> dict[int, str | None]:
    """Return the slots that a plan uses, in order, with their devices, None for a CPU slot."""
    devices = {rank["slot"]: rank.get("device") for rank in plan.get("ranks") or ()}
    return {index: devices[index] for index in plan_slots(plan)}


def check_secrets(values: Any) -> dict[str, str]:
    """Return the variables that only the ranks may see."""
    return Fields({"secrets": values or {}}).environment("secrets")
