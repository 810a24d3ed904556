"""Environment of the ranks: what the host, the launch, the trial and the rank itself add to it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from ..files.layout import Layout, RunFolder
from ..machine.host_environment import passed
from ..names import Json
from . import metrics_file

#: Prefix of the programs of the training library, which ``python -m`` runs.
LIBRARY = "airflow_provider_dtrain.train."
#: Limit of Linux for one string of an environment (MAX_ARG_STRLEN), including its final NUL.
MAX_VARIABLE_BYTES = 131_072


def rank_environment(
    plan: Json,
    context: Json,
    rank: Json,
    folder: RunFolder,
    go: Json,
    secrets: dict[str, str],
    image: dict[str, str] | None = None,
) -> dict[str, str]:
    """Return the whole environment of one rank. Later parts replace earlier ones.

    :param go: address and port of rank 0
    :param image: environment that the image of the run's container gives to its programs; None: without a container
    """
    python_path = (os.environ if image is None else image).get("PYTHONPATH", "")
    first = shared_variables(plan, passed(os.environ) if image is None else image)
    return {
        **first,
        **packages_variables(plan, folder.layout, first.get("PATH") or os.defpath),
        **trial_variables(context, folder),
        **(_of_launcher(plan, go) if plan["per_host"] else _of_rank(plan, rank, go)),
        **secrets,
        **_of_run(plan, rank, folder, plan["env"].get("PYTHONPATH") or python_path),
    }


def shared_variables(plan: Json, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that depend on neither rank nor trial.

    :param given: what the host passes to its ranks, or the environment of the image
    """
    return {**given, **_of_host(plan), **plan["env"]}


def _of_host(plan: Json) -> dict[str, str]:
    """Return the defaults, which the configuration may replace."""
    return {
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // len(plan["ranks"]))),
        # The log is read as UTF-8, whatever the locale of the login is.
        "PYTHONIOENCODING": "utf-8",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def packages_variables(plan: Json, layout: Layout, path: str) -> dict[str, str]:
    """Return what makes the programs of the environment from a lock file the first ones in PATH."""
    if plan["environment"] is None:
        return {}
    root = layout.environment(plan["environment"])
    return {"VIRTUAL_ENV": root, "PATH": os.pathsep.join([os.path.join(root, "bin"), path])}


def trial_variables(context: Json, folder: RunFolder) -> dict[str, str]:
    """Return the values of the trial that programs find without the training library, which reads ``context.json``.

    Hyperparameters that are too long for a variable are left out.
    """
    variables = {
        "TORCHELASTIC_RESTART_COUNT": str(context["attempt"] - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(context["max_restarts"]),
        "DTRAIN_TRIAL_SEED": str(context["seed"]),
        "DTRAIN_CHECKPOINT_DIR": context["checkpoint_dir"] or folder.file("checkpoints"),
    }
    if context["latest_checkpoint"] is not None:
        variables["DTRAIN_LATEST_CHECKPOINT"] = context["latest_checkpoint"]
    hparams = json.dumps(context["hparams"], sort_keys=True, separators=(",", ":"))
    if len(f"DTRAIN_HPARAMS={hparams}".encode()) < MAX_VARIABLE_BYTES:
        variables["DTRAIN_HPARAMS"] = hparams
    return variables


def left_out(variables: dict[str, str]) -> str | None:
    """Return a sentence about hyperparameters that are not in the environment of a rank, or None if they are."""
    if "DTRAIN_HPARAMS" in variables:
        return None
    return (
        f"DTRAIN_HPARAMS is not set, because the hyperparameters as JSON exceed the {MAX_VARIABLE_BYTES:,} bytes that "
        "Linux allows for a variable. Read 'hparams' in the file that DTRAIN_CONTEXT names, or use dtrain.init()."
    )


def _of_rank(plan: Json, rank: Json, go: Json) -> dict[str, str]:
    """Return the variables of torchrun's ranks."""
    values = {
        "RANK": rank["rank"],
        "LOCAL_RANK": rank["local_rank"],
        "WORLD_SIZE": plan["world_size"],
        "LOCAL_WORLD_SIZE": len(plan["ranks"]),
        "GROUP_RANK": plan["group_rank"],
        "GROUP_WORLD_SIZE": plan["group_world_size"],
        # There is one role, so its ranks are those of the gang.
        "ROLE_NAME": "default",
        "ROLE_RANK": rank["rank"],
        "ROLE_WORLD_SIZE": plan["world_size"],
        "DTRAIN_SLOT": rank["slot"],
        "CUDA_VISIBLE_DEVICES": ",".join(rank["visible_devices"]),
        "MASTER_ADDR": go["master_addr"],
        "MASTER_PORT": go["master_port"],
        # Rank 0 serves the store of the rendezvous itself: no launcher does it for the ranks.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_RUN_ID": plan["run"],
    }
    return {name: str(value) for name, value in values.items()}


def _of_launcher(plan: Json, go: Json) -> dict[str, str]:
    """Return the variables of the one process per host that starts the ranks.

    It sets RANK, LOCAL_RANK and WORLD_SIZE for them. Variables with the prefix ``PET_`` are defaults of torchrun's
    arguments. Source: ``torch.distributed.argparse_util``.
    """
    devices = dict.fromkeys(device for rank in plan["ranks"] for device in rank["visible_devices"])
    address, port = go["master_addr"], str(go["master_port"])
    address_in_url = f"[{address}]" if ":" in address else address
    values = {
        "LOCAL_WORLD_SIZE": len(plan["ranks"]),
        "GROUP_RANK": plan["group_rank"],
        "GROUP_WORLD_SIZE": plan["group_world_size"],
        "CUDA_VISIBLE_DEVICES": ",".join(devices),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "DTRAIN_LAUNCH": "per_host",
        "DTRAIN_WORLD_SIZE": plan["world_size"],
        "PET_NNODES": plan["group_world_size"],
        "PET_NPROC_PER_NODE": len(plan["ranks"]),
        "PET_NODE_RANK": plan["group_rank"],
        "PET_MASTER_ADDR": address_in_url,
        "PET_MASTER_PORT": port,
        "PET_RDZV_ID": plan["run"],
    }
    if plan["group_world_size"] > 1:
        # For other backends of the rendezvous. On one host it would take precedence over a port in the command.
        values["PET_RDZV_ENDPOINT"] = f"{address_in_url}:{port}"
    return {name: str(value) for name, value in values.items()}


def _of_run(plan: Json, rank: Json, folder: RunFolder, python_path: str) -> dict[str, str]:
    own = folder.file(f"rank{rank['rank']}")
    path = [folder.layout.library(plan["library"]) if plan["library"] else ""]
    if not runs_library(plan["argv"]):
        path.insert(0, folder.file("work"))
    path.append(python_path)
    return {
        **constant_variables(),
        "PYTHONPATH": ":".join(part for part in path if part),
        "TORCHELASTIC_ERROR_FILE": os.path.join(own, "error.json"),
        "DTRAIN_RUN": folder.name,
        "DTRAIN_RUN_DIR": folder.path,
        "DTRAIN_EVENTS": os.path.join(own, "events"),
        "DTRAIN_METRICS": os.path.join(own, metrics_file.NAME),
        "DTRAIN_CONTEXT": folder.file("context.json"),
    }


def constant_variables() -> dict[str, str]:
    """Return the variables that every rank has, whatever a configuration sets."""
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "PYTHONUNBUFFERED": "1"}


def runs_library(argv: list[str]) -> bool:
    """Return whether a command runs a program of the training library."""
    return len(argv) > 2 and argv[1] == "-m" and argv[2].startswith(LIBRARY)


def too_large(argv: list[str], env: dict[str, str]) -> str:
    """Return a sentence about the largest strings of a start that Linux has refused, by their names only."""
    sizes = {f"variable {name}": len(os.fsencode(f"{name}={value}")) for name, value in env.items()}
    sizes |= {f"argument {number}": len(os.fsencode(value)) for number, value in enumerate(argv)}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    return (
        f"the command and its environment have {sum(sizes.values()):,} bytes. Linux allows {MAX_VARIABLE_BYTES:,} for "
        "one string and a quarter of the stack (ulimit -s) for all. The largest are "
        + ", ".join(f"{name} ({sizes[name]:,} bytes)" for name in largest)
        + ". Put long values into a file"
    )
