"""Documents that are meant to break the reader: each ends with messages, in bounded time, without secrets."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_dtrain.core.config import ExperimentConfig, assemble, mask, positions, validate_partial
from airflow_provider_dtrain.core.config.positions import TextPosition, places_of
from airflow_provider_dtrain.core.config.yaml_reader import load_yaml
from airflow_provider_dtrain.core.hyperparameters.space import grid_size
from airflow_provider_dtrain.core.regular_files import read_regular
from airflow_provider_dtrain.core.safe_repr import may_be_secret, shown
from airflow_provider_dtrain.errors import ConfigError, PayloadError, Problem

SECRET = "hunter2-and-more"
SPACE = {"lr": {"type": "log", "minval": -3, "maxval": -1}}
RUN: dict[str, Any] = {"entrypoint": "python train.py"}


def failure(document: Any, check: Callable[[Any], object] = ExperimentConfig.model_validate) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        check(document)
    return error.value


def paths(document: Any, check: Callable[[Any], object] = ExperimentConfig.model_validate) -> list[str]:
    return [problem.path for problem in failure(document, check).problems]


# -- patterns and numbers


@pytest.mark.parametrize(
    "pattern",
    ["a{99999999999}", "(" * 499 + ")" * 499, "(?:" * 300 + ")" * 300, "[[a", "(?P<a>x)(?P<a>y)", "a**", "(?"],
)
def test_a_pattern_that_cannot_be_compiled_is_named_with_its_path(pattern: str) -> None:
    assert paths({"log_policies": [{"name": "a", "pattern": pattern}]}) == ["log_policies.0.pattern"]


@pytest.mark.parametrize("error", [OverflowError, RecursionError, MemoryError])
def test_whatever_the_compiler_of_patterns_raises_becomes_a_message(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(pattern: str) -> None:
        raise error

    monkeypatch.setattr("airflow_provider_dtrain.core.config.types.re.compile", fail)
    found = failure({"log_policies": [{"name": "a", "pattern": "x"}]})
    assert error.__name__ in str(found)


def test_nested_groups_of_common_depth_are_accepted() -> None:
    pattern = "(" * 20 + "a" + ")" * 20 + r"\(\(" * 60
    assert ExperimentConfig.model_validate({"log_policies": [{"pattern": pattern}]}).log_policies[0].pattern == pattern


HUGE = 10**399


@pytest.mark.parametrize(
    "document",
    [
        {"searcher": {"name": "random", "metric": "m", "max_trials": HUGE}},
        {"searcher": {"name": "random", "metric": "m", "max_trials": 1, "max_concurrent_trials": HUGE}},
        {"searcher": {"name": "async_halving", "metric": "m", "max_trials": 1, "num_rungs": HUGE, "divisor": HUGE}},
        {"searcher": {"name": "adaptive_asha", "metric": "m", "max_trials": 1, "bracket_rungs": [HUGE]}},
        {"searcher": {"name": "single", "max_length": {"batches": HUGE}}},
        {"searcher": {"name": "single", "max_time": HUGE}},
        {"resources": {"slots_per_trial": HUGE, "weight": HUGE, "max_slots": HUGE, "priority": HUGE}},
        {"resources": {"shm_size": HUGE}},
        {"resources": {"shm_size": "9" * 400}},
        {"hyperparameters": {"a": {"type": "double", "minval": 0, "maxval": HUGE}}},
        {"hyperparameters": {"a": {"type": "log", "minval": 0, "maxval": HUGE}}},
        {"hyperparameters": {"a": {"type": "log", "minval": 0, "maxval": 1, "base": HUGE}}},
        {"hyperparameters": {"a": {"type": "log", "minval": 0, "maxval": 1, "base": 1e-320, "count": -HUGE}}},
        {"hyperparameters": {"a": 10**5000}},
        {"max_restarts": HUGE, "scheduling_unit": HUGE, "records_per_epoch": HUGE},
        {"preemption_timeout": HUGE, "hang_timeout": HUGE},
        {"reproducibility": {"experiment_seed": -HUGE}},
        {"optimizations": {"aggregation_frequency": HUGE, "tensor_fusion_threshold": HUGE}},
        {"profiling": {"sampling_interval_s": HUGE}},
        {"environment": {"variables": {"A": 10**5000}}},
        {HUGE: 1},
    ],
)
def test_a_number_of_hundreds_of_digits_is_refused_in_a_short_message(document: Any) -> None:
    found = failure(document)
    assert max(len(str(problem)) for problem in found.problems) < 500
    assert found.problems[0].path or HUGE in document


def test_a_grid_of_counts_with_hundreds_of_digits_is_refused() -> None:
    space = {f"a{n}": {"type": "int", "minval": 0, "maxval": HUGE, "count": HUGE} for n in range(50)}
    document = {**RUN, "hyperparameters": space, "searcher": {"name": "grid", "metric": "m"}}
    found = failure(document, lambda given: assemble(None, given))
    assert [problem.path for problem in found.problems] == ["hyperparameters"]
    assert len(str(found)) < 300
    assert grid_size(space) > 100_000


# -- cost


def cpu_seconds(check: Callable[[Any], object], document: Any) -> float:
    """Return the CPU time of this thread, without collections of the garbage of all tests before."""
    gc.collect()
    gc.disable()
    try:
        start = time.thread_time()
        with contextlib.suppress(ConfigError):
            check(document)
        return time.thread_time() - start
    finally:
        gc.enable()


def is_linear(check: Callable[[Any], object], half: Any, whole: Any) -> bool:
    """Return whether twice the input costs less than three times as much.

    A quadratic cost would be four times as much. Small costs are mostly noise and count as linear. There are three
    tries, because the machine may be busy.
    """
    return any(cpu_seconds(check, whole) < max(3.0 * cpu_seconds(check, half), 0.25) for _ in range(3))


def mounts(count: int, prefix: str = "/c") -> list[dict[str, str]]:
    return [{"host_path": f"/h{n}", "container_path": f"{prefix}{n}"} for n in range(count)]


HALVING = {"name": "adaptive_asha", "metric": "m", "max_trials": 90_000, "divisor": 2, "max_length": {"batches": 10**6}}
#: Names -> document with n of something; the full size is in the second column.
LARGE: dict[str, tuple[int, Callable[[int], dict[str, Any]]]] = {
    "bracket_rungs": (10_000, lambda n: {"searcher": {**HALVING, "bracket_rungs": [1 + k % 16 for k in range(n)]}}),
    "bind mounts": (12_000, lambda n: {"bind_mounts": mounts(n)}),
    "equal bind mounts": (12_000, lambda n: {"bind_mounts": mounts(n // 2) * 2}),
    "unknown keys": (10_000, lambda n: {f"key{k}": 1 for k in range(n)}),
    "unknown keys of a section": (10_000, lambda n: {"resources": {f"slots{k}": 1 for k in range(n)}}),
    "a long word": (1_000_000, lambda n: {"entrypoint": "python " + "x" * n}),
    "words": (200_000, lambda n: {"entrypoint": "python " + "x " * n}),
    "an open quote": (1_000_000, lambda n: {"entrypoint": "python '" + "x " * (n // 2)}),
    "a quoted word": (1_000_000, lambda n: {"entrypoint": 'python "' + "x\\'" * (n // 3) + '"'}),
    "policies": (10_000, lambda n: {"log_policies": [{"name": f"p{k}", "pattern": "x"} for k in range(n)]}),
    "equal policies": (10_000, lambda n: {"log_policies": [{"name": f"p{k // 2}", "pattern": "x"} for k in range(n)]}),
    "labels": (10_000, lambda n: {"labels": [f"l{k}" for k in range(n)]}),
    "axes": (5_000, lambda n: {"hyperparameters": {f"a{k}": SPACE["lr"] for k in range(n)}}),
    "equal columns": (40_000, lambda n: {"inference": {"outputs": {"path": "/a", "columns": ["c"] * n}}}),
}


@pytest.mark.nightly(
    "axes",
    "bracket_rungs",
    "equal bind mounts",
    "equal policies",
    "labels",
    "unknown keys of a section",
    "a long word",
    "equal columns",
)
@pytest.mark.parametrize("name", LARGE)
def test_the_cost_of_a_document_grows_with_its_length(name: str) -> None:
    size, make = LARGE[name]
    half, whole = make(size // 2), make(size)

    def check(document: dict[str, Any]) -> object:
        return assemble(None, {**RUN, **document})

    assert is_linear(check, half, whole)


#: What looks for secrets -> text or document of a size, and the full size.
SEARCHED: dict[str, tuple[Callable[[Any], object], int, Callable[[int], Any]]] = {
    "variables": (mask, 20_000, lambda n: {"environment": {"variables": {f"V{k}": "ab" * 40 + " " for k in range(n)}}}),
    "entries": (mask, 20_000, lambda n: {"environment": {"variables": [f"V{k}={'ab' * 40} " for k in range(n)]}}),
    "long words": (may_be_secret, 8_000, lambda n: ("a" * 99 + " ") * (n // 100)),
    "dotted words": (may_be_secret, 8_000, lambda n: "a." * (n // 2)),
    "assignments": (may_be_secret, 8_000, lambda n: "key_a_b =" * (n // 9)),
    "marks": (may_be_secret, 8_000, lambda n: "=" * n),
    "spaces": (may_be_secret, 8_000, lambda n: "a" + " " * n + "="),
}


@pytest.mark.parametrize("name", SEARCHED)
def test_the_search_for_secrets_costs_little_and_grows_with_the_length(name: str) -> None:
    check, size, make = SEARCHED[name]
    half, whole = make(size // 2), make(size)
    assert is_linear(check, half, whole)
    assert min(cpu_seconds(check, whole) for _ in range(3)) < 0.5


EXPLICIT = "data:\n  ? '{key}'\n  : {{{below}}}\n"
#: Documents of less than 1 MiB that would be gigabytes as values, paths or text.
BOMBS = {
    "a long name above many fields": EXPLICIT.format(
        key="k" * 50_000, below=", ".join(f"a{n}: 1" for n in range(3_000))
    ),
    "long names above each other": "data:" + "".join(
        "\n" + "  " * n + f"? '{'k' * 400}'\n" + "  " * n + ":" for n in range(1, 20)
    ) + " {" + ", ".join(f"a{n}: 1" for n in range(9_000)) + "}",
    "a long text of many aliases": f"data: {{s: &s '{'x' * 500_000}', l: [{', '.join(['*s'] * 90_000)}]}}",
    "a long text of merged aliases": f"a: &a {{b: '{'x' * 5_000}'}}\nl:\n" + "- {<<: *a}\n" * 9_000,
    "double keys": "a: 1\n" * 40_000,
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_document_that_would_expand_is_refused_in_little_memory(name: str) -> None:
    assert len(BOMBS[name]) < 1 << 20
    tracemalloc.start()
    try:
        found = failure(BOMBS[name], load_yaml)
        places = places_of(BOMBS[name], found.problems)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert len(places) == len(found.problems) <= 1001
    assert len(str(found.problems[-1])) < 600


def test_the_same_limits_hold_for_documents_from_code() -> None:
    long = "x" * 100_000
    assert "1 MiB of text" in str(failure({"data": {"a": [long] * 20}}))
    assert "more than 500 characters" in str(failure({"data": {"k" * 501: {f"a{n}": 1 for n in range(1000)}}}))
    assert ExperimentConfig.model_validate({**RUN, "data": {"k" * 400: [long] * 9}}).data


def test_places_are_looked_up_only_for_problems_that_do_not_name_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(positions, "positions", lambda text: asked.append(text) or {"a": TextPosition(7, 1)})
    named = Problem(path="a", message="twice (line 3, column 2)")
    assert places_of("text", [named]) == [(3, 2)]
    assert not asked
    assert places_of("text", [named, Problem(path="a.b", message="wrong")]) == [(3, 2), (7, 1)]


def test_the_cost_of_a_template_with_many_mounts_grows_with_their_number() -> None:
    def check(count: int) -> object:
        return assemble({"bind_mounts": mounts(count)}, {**RUN, "bind_mounts": mounts(count, "/d")})

    assert is_linear(check, 3_000, 6_000)


def test_only_the_first_hundred_problems_stand_in_the_message_and_all_in_the_error() -> None:
    found = failure({f"key{n}": 1 for n in range(5_000)})
    assert len(found.problems) == 5_000
    assert len(str(found).splitlines()) == 102
    assert "and 4900 more" in str(found)


# -- secrets in messages


LEAKS: list[Any] = [
    {"environment": [f"DB_PASSWORD={SECRET}"]},
    {"environment": f"DB_PASSWORD={SECRET}"},
    {"environment": {"variables": f"DB_PASSWORD={SECRET}"}},
    {"environment": {"variables": [f"DB_PASSWORD:{SECRET}"]}},
    {"environment": {"variables": {f"DB_PASSWORD={SECRET}": "x"}}},
    {"environment": {f"DB_PASSWORD={SECRET}": "x"}},
    {"environment": {"variables": {"DB_PASSWORD": f"{SECRET}\n"}}},
    {"environment": {"variables": [f"A={SECRET}", f"A={SECRET}", 5]}},
    {"environment": {"environment_variables": {"A": [SECRET]}}},
    {"environment": {"python": f"TOKEN={SECRET}; x"}},
    {"environment": {"image": [f"TOKEN={SECRET}"]}},
    {"environment": {"image": {"cpu": "x", f"TOKEN={SECRET}": 1}}},
    {f"DB_PASSWORD={SECRET}": 1},
    {"resources": f"API_KEY={SECRET}"},
    {"resources": {"pool": f"https://user:{SECRET}@host/"}},
    {"resources": {"slots_per_trial": {"password": SECRET}}},
    {"resources": [SECRET]},
    {"data": f"{SECRET}"},
    {"data": [SECRET]},
    {"data": {"secrets": {"a": [SECRET, float("inf")], "b": object()}}},
    {"checkpoint_storage": f"AccountKey={SECRET}"},
    {"checkpoint_storage": f"{SECRET}"},
    {"checkpoint_storage": {"type": "s3", "bucket": "b", "secret_key": [SECRET], "access_key": f"{SECRET}\n"}},
    {"checkpoint_storage": {"type": f"SECRET={SECRET}"}},
    {"checkpoint_storage": {"type": {"secret_key": SECRET}}},
    {"checkpoint_storage": {"type": "azure", "container": "c", "connection_string": SECRET, "credential": SECRET}},
    {"checkpoint_storage": {"type": "azure", "container": 5, "connection_string": {"a": SECRET}}},
    {"entrypoint": f"python a.py --password='{SECRET}"},
    {"entrypoint": f"python a.py --password={SECRET} $X > log"},
    {"entrypoint": f"python a.py mysql://u:{SECRET}@host/$DB"},
    {"entrypoint": ["python", {"--password": SECRET}]},
    {"searcher": f"password: {SECRET}"},
    {"searcher": {"name": f"token={SECRET}"}},
    {"searcher": {"max_trials": {"password": SECRET}}},
    {"hyperparameters": {"password": {"type": f"secret={SECRET}"}}},
    {"hyperparameters": {"a": {"type": "int", "minval": {"password": SECRET}, "maxval": f"password={SECRET}"}}},
    {"log_policies": [{"name": "a", "pattern": f"(password={SECRET}"}]},
    {"template": f"password={SECRET}"},
    {"max_restarts": f"password={SECRET}"},
    [f"DB_PASSWORD={SECRET}"],
]


@pytest.mark.parametrize("check", [ExperimentConfig.model_validate, validate_partial])
@pytest.mark.parametrize("document", LEAKS)
def test_a_value_that_may_be_a_secret_is_in_no_message(document: Any, check: Callable[[Any], object]) -> None:
    found = failure(document, check)
    assert SECRET not in str(found)
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    "text",
    [
        f"environment:\n  variables:\n    DB_PASSWORD: *{SECRET}\n",
        f"environment:\n  variables:\n    DB_PASSWORD: !{SECRET} x\n",
        f"environment:\n  variables:\n    DB_PASSWORD: @{SECRET}\n",
        f"environment:\n  variables:\n    DB_PASSWORD: %{SECRET}\n",
        f"environment:\n  DB_PASSWORD={SECRET}\n  A: b\n",
        f"data: {{secrets: {{a: !!int {SECRET}password=x}}}}\n",
        f"data: {{secrets: 'password={SECRET}}}\n",
        f"environment:\n  - DB_PASSWORD={SECRET}\n A\n",
    ],
)
def test_what_is_no_yaml_is_refused_without_its_text(text: str) -> None:
    assert SECRET not in str(failure(text, load_yaml))


def test_a_long_value_is_shortened() -> None:
    found = failure({"resources": {"pool": "x" * 5000, "is_single_host": "y" * 5000}, "z" * 5000: 1})
    assert max(len(str(problem)) for problem in found.problems) < 400


@pytest.mark.parametrize(
    "text",
    [
        "DB_PASSWORD=x",
        "export AWS_SECRET_ACCESS_KEY=x",
        "PGPASSWORD=x",
        "postgres://user:pw@host/db",
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_0123456789abcdefghij",
        '{"api_key": "x"}',
        "--token=x",
    ],
)
def test_texts_with_secrets_are_recognized(text: str) -> None:
    assert may_be_secret(text)
    assert text not in shown(text)


@pytest.mark.parametrize("text", ["python train.py", "OMP_NUM_THREADS=4", "TOKENIZERS_PARALLELISM=false", "a b", "4g"])
def test_plain_texts_are_shown(text: str) -> None:
    assert shown(text) == repr(text)


def test_a_variable_is_masked_unless_it_is_marked_as_public() -> None:
    variables = {"PGPASSWORD": SECRET, "URL": f"postgres://u:{SECRET}@h/d", "N": "4", "HARMLESS": "open"}
    for given in (variables, [f"{name}={value}" for name, value in variables.items()]):
        masked = mask({"environment": {"variables": given, "public_variables": ["N"]}})
        assert SECRET not in str(masked)
        assert "open" not in str(masked)
        assert "4" in str(masked)


# -- files


@pytest.fixture
def in_time() -> Iterator[None]:
    """Fail a test that waits for the writer of a pipe."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("It waits for the writer of a pipe."))
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def named(tmp_path: Path) -> dict[str, Path]:
    """Return files of other kinds under the names by which messages call them."""
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s.yaml"))
    listener.close()
    return {
        "pipe": tmp_path / "pipe.yaml",
        "folder": tmp_path / "folder.yaml",
        "socket": tmp_path / "s.yaml",
        "device": Path("/dev/zero"),
    }


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "device"])
def test_what_is_no_regular_file_is_refused_by_name_without_waiting(kind: str, named: dict[str, Path]) -> None:
    with pytest.raises(OSError, match=kind):
        read_regular(named[kind])


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "device"])
def test_a_configuration_or_template_that_is_no_regular_file_is_refused_by_name(
    kind: str, named: dict[str, Path]
) -> None:
    from airflow_provider_dtrain.cli._inputs import read
    from airflow_provider_dtrain.engine.submission.submit import read_document

    path = named[kind]
    with pytest.raises(ConfigError, match=rf"{path}: .*it is a .*{kind}"):
        read(str(path), what="configuration")
    if kind != "device":
        with pytest.raises(ConfigError, match=rf"cannot read {path}: it is a .*{kind}"):
            read_document(str(path), path.parent, what="template")


@pytest.mark.usefixtures("in_time")
def test_a_model_folder_with_a_pipe_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    from airflow_provider_dtrain.hosts.payload import IGNORE_FILE, pack

    (tmp_path / "train.py").write_text("")
    os.mkfifo(tmp_path / IGNORE_FILE)
    with pytest.raises(PayloadError, match=f"{IGNORE_FILE} cannot be read: .*FIFO"):
        pack(tmp_path)
    with pytest.raises(PayloadError, match="is not a folder"):
        pack(tmp_path / IGNORE_FILE)


@pytest.mark.usefixtures("in_time")
def test_a_file_that_becomes_a_pipe_after_it_was_looked_at_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    plain = os.stat(__file__)
    monkeypatch.setattr("airflow_provider_dtrain.core.regular_files.os.stat", lambda path: plain)
    with pytest.raises(OSError, match="FIFO"):
        read_regular(tmp_path / "pipe.yaml")


def test_the_text_of_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    assert read_regular(tmp_path / "a", limit_bytes=4) == b"0123"
    assert read_regular(tmp_path / "a") == b"0123456789"
