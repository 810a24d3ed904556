"""Environment of the process at its start: its rank, its trial, its files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_dtrain.train.errors import SetupError
from airflow_provider_dtrain.train.values import JsonObject

#: A JSON object, dotted path of the configuration -> secret.
SECRETS = "DTRAIN_SECRETS"
#: Its text after it was removed from the environment: a second context of this process needs it again.
_taken: list[str] = []


@dataclass(frozen=True)
class RankEnvironment:
    """Place of one rank in its gang, and the data that the control side passed to it.

    Off-cluster, most fields are empty: one process, rank 0 of 1.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    #: Index of this rank's host in the gang.
    group_rank: int = 0
    #: ``t<trial>.<attempt>.<token>`` on the cluster, else None.
    run: str | None = None
    run_dir: Path | None = None
    events_path: Path | None = None
    error_path: Path | None = None
    #: Log of the launcher that started this rank; None for a rank that the supervisor started.
    launcher_log: Path | None = None
    #: Explicit folder for checkpoints; None off-cluster unless the user names one.
    checkpoint_dir: Path | None = None
    #: Folder or URL of the newest checkpoint that the control side knows.
    latest_checkpoint: Path | str | None = None
    #: Folder or URL of the checkpoint whose weights the first attempt starts from.
    source_checkpoint: Path | str | None = None
    #: URL for checkpoints when ``checkpoint_storage`` is a bucket.
    checkpoint_url: str | None = None
    hparams: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    #: The effective experiment configuration, with its secrets: never shown or written anywhere.
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    trial_id: int | None = None
    experiment_id: int | None = None
    attempt: int | None = None
    #: Lengths at which the searcher decides, in units of ``searcher.max_length``.
    rungs: tuple[int, ...] = ()
    #: Number of them, from the lowest, at which it has decided in earlier attempts.
    rungs_decided: int = 0
    #: Ranks of the gang share a GPU, so NCCL cannot be used.
    shares_devices: bool = False
    #: Start from step 0 when every checkpoint is damaged (``DTRAIN_START_OVER``).
    start_over: bool = False
    #: Shard of a batch inference -> failures that earlier attempts had because of it.
    shard_failures: Mapping[int, int] = field(default_factory=dict)

    @property
    def on_cluster(self) -> bool:
        """True for a rank that a supervisor started."""
        return self.run is not None

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> RankEnvironment:
        """Return the environment of this process.

        :param environ: default: the process's environment
        :raises SetupError: a variable or the context file is not valid
        """
        env = os.environ if environ is None else environ
        secrets = _secrets(_take_secrets() if environ is None else env.get(SECRETS))
        context = _context(env.get("DTRAIN_CONTEXT"))
        world_size = _integer(env, "WORLD_SIZE", 1)
        rank = _integer(env, "RANK", 0)
        if not 0 <= rank < world_size:
            raise SetupError(f"RANK must be at least 0 and below WORLD_SIZE, got {rank} with WORLD_SIZE {world_size}.")
        run_dir = _path(env.get("DTRAIN_RUN_DIR"))
        events_path = _path(env.get("DTRAIN_EVENTS"))
        error_path = _path(env.get("TORCHELASTIC_ERROR_FILE"))
        launcher_log = None
        if env.get("DTRAIN_LAUNCH") == "per_host" and run_dir is not None:
            _check_launched(env)
            launcher_log = None if events_path is None else events_path.with_name("log")
            own = run_dir / f"rank{rank}"
            events_path, error_path = own / "events", own / "error.json"
        elif events_path is not None:
            _check_rank(rank, events_path)
        return cls(
            rank=rank,
            local_rank=_integer(env, "LOCAL_RANK", 0),
            world_size=world_size,
            local_world_size=_integer(env, "LOCAL_WORLD_SIZE", world_size),
            group_rank=_integer(env, "GROUP_RANK", 0),
            run=env.get("DTRAIN_RUN") or None,
            run_dir=run_dir,
            events_path=events_path,
            error_path=error_path,
            launcher_log=launcher_log,
            checkpoint_dir=_path(context.get("checkpoint_dir")),
            latest_checkpoint=_place(context.get("latest_checkpoint")),
            source_checkpoint=_place(context.get("source_checkpoint")),
            checkpoint_url=context.get("checkpoint_url"),
            hparams=_mapping(context.get("hparams"), "hparams of DTRAIN_CONTEXT"),
            seed=context.get("seed"),
            config=put_secrets(_mapping(context.get("config"), "config of DTRAIN_CONTEXT"), secrets),
            trial_id=context.get("trial_id"),
            experiment_id=context.get("experiment_id"),
            attempt=context.get("attempt"),
            rungs=_rungs(context.get("rungs")),
            rungs_decided=_count(context.get("rungs_decided") or 0, "rungs_decided"),
            shares_devices=context.get("shares_devices") is True,
            start_over=env.get("DTRAIN_START_OVER", "") not in {"", "0"},
            shard_failures=_shard_failures(context.get("shard_failures")),
        )


def _check_launched(env: Mapping[str, str]) -> None:
    """Raise unless a launcher has numbered this process as a rank of the trial."""
    given, expected = env.get("WORLD_SIZE"), env.get("DTRAIN_WORLD_SIZE")
    if "RANK" not in env or given is None:
        raise SetupError(
            "launch: per_host starts one process per host, and RANK and WORLD_SIZE are not set in this one. Call "
            "dtrain.init() in the processes that a launcher such as torchrun starts, or remove launch."
        )
    if expected is not None and given != expected:
        raise SetupError(
            f"WORLD_SIZE must be {expected}, the number of slots of the trial, got {given}. Start one process per slot."
        )


def _check_rank(rank: int, events: Path) -> None:
    """Raise in a process that was started by a rank and numbered anew, e.g. by ``mp.spawn``."""
    started = re.fullmatch(r"rank(\d+)", events.parent.name)
    if started is not None and int(started[1]) != rank:
        raise SetupError(
            f"RANK must be {started[1]}, as the trial has started this rank, got {rank}: the script has started ranks "
            "of its own, e.g. by mp.spawn, although each slot has a rank already. Set launch: per_host if the script "
            "starts the ranks of a host, or remove mp.spawn and call its function once."
        )


def _context(path: str | None) -> Mapping[str, Any]:
    if not path:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            return _mapping(json.load(file), f"DTRAIN_CONTEXT ({path})")
    except (OSError, ValueError) as error:
        raise SetupError(f"DTRAIN_CONTEXT names {path}, which cannot be read: {error}") from error


def _count(value: Any, name: str) -> int:
    if type(value) is not int or value < 0:
        raise SetupError(f"{name} of DTRAIN_CONTEXT must be a whole number, 0 or more, got {value!r}.")
    return value


def _rungs(value: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, type(None))) or not all(type(units) is int for units in value or ()):
        raise SetupError(f"rungs of DTRAIN_CONTEXT must be a list of whole numbers, got {value!r}.")
    return tuple(sorted(value or ()))


def _shard_failures(value: Any) -> Mapping[int, int]:
    """Return failures per shard. JSON has texts as keys."""
    return {int(shard): int(count) for shard, count in _mapping(value, "shard_failures of DTRAIN_CONTEXT").items()}


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SetupError(f"{what} must be a JSON object, got {type(value).__name__}.")
    return value


def _integer(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    try:
        return int(text)
    except ValueError:
        raise SetupError(f"{name} must be a whole number, got {text!r}.") from None


def _place(text: str | None) -> Path | str | None:
    """Return a URL unchanged, and any other text as an absolute path."""
    return text if text and "://" in text else _path(text)


def _take_secrets() -> str | None:
    """Return this process's secrets, and remove them so that child processes do not inherit them."""
    text = os.environ.pop(SECRETS, None)
    if text is not None:
        _taken[:] = [text]
    return _taken[0] if _taken else None


def _secrets(text: str | None) -> Mapping[str, Any]:
    try:
        return _mapping(json.loads(text), SECRETS) if text else {}
    except ValueError:
        # The error would show a part of the text.
        raise SetupError(f"{SECRETS} must be a JSON object.") from None


def put_secrets(config: Mapping[str, Any], secrets: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration with the secrets inserted.

    :param secrets: dotted path -> value
    """
    if not secrets:
        return config
    whole: JsonObject = json.loads(json.dumps(dict(config)))
    for path, value in secrets.items():
        keys = _keys(path)
        place: Any = whole
        for key in keys[:-1]:
            place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
        place[int(keys[-1]) if isinstance(place, list) else keys[-1]] = value
    return whole


def _keys(path: str) -> list[str]:
    """Return the keys of a dotted path. A key that holds a dot is in double quotes."""
    parts = re.findall(r'"((?:[^"\\]|\\.)*)"|([^.]+)', path)
    return [plain or quoted.replace('\\"', '"') for quoted, plain in parts]


def _path(text: str | None) -> Path | None:
    return Path(os.path.abspath(text)) if text else None
