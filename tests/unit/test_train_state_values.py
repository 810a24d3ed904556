"""Registered state with values of common Python types: saved and restored exactly, or refused by path."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import io
import pickle
import zipfile
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train.checkpoint import description, disk, reading  # noqa: E402
from airflow_provider_dtrain.train.checkpoint.state_values import VALUE, decode, encode  # noqa: E402
from airflow_provider_dtrain.train.distributed import Distributed  # noqa: E402
from airflow_provider_dtrain.train.environment import RankEnvironment  # noqa: E402
from airflow_provider_dtrain.train.errors import CheckpointError, StateError  # noqa: E402
from tests.support import stored  # noqa: E402

UTC = datetime.UTC
ARRAYS = [
    np.arange(6, dtype="<i8").reshape(2, 3),
    np.arange(6, dtype=">i4").reshape(3, 2)[:, 1],
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array([1.5, np.nan, -0.0], dtype=">f8"),
    np.array([1 + 2j], dtype="complex64"),
    np.array([True, False]),
    np.array(7, dtype="uint16"),
    np.empty((0, 3), dtype="float16"),
    np.array(["ä", "long"]),
    np.array([b"x", b"yz"]),
    np.array(["2024-02-29", "NaT"], dtype="datetime64[ns]"),
    np.array([1.0], dtype="longdouble"),
    np.frombuffer(b"\1\2", dtype="uint8"),
]
NUMBERS = [np.float32(0.1), np.float64("nan"), np.int64(-1), np.bool_(True), np.str_("ä"), np.datetime64("NaT", "s")]
VALUES = [
    deque([1, {"a": deque()}], maxlen=5),
    deque(),
    defaultdict(list, {"a": [1], 2: []}),
    defaultdict(None, {"a": 1}),
    {"by": defaultdict(dict, {1: defaultdict(int, x=1)})},
    OrderedDict([("b", {1}), ("a", 2)]),
    OrderedDict([(Path("b"), 1), ("a", 2)]),
    {Path("a"): 1, datetime.date(2024, 2, 29): 2, (1, frozenset({2})): 3, np.int64(4): 5},
    {1, "a", (2, Path("x"))},
    frozenset({1, 2}),
    Counter("aab"),
    Path("a/b"),
    PurePosixPath("/x"),
    PureWindowsPath("c:\\x"),
    datetime.datetime(2024, 2, 29, 1, 2, 3, 4, fold=1),
    datetime.datetime(2024, 2, 29, tzinfo=UTC),
    datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone(datetime.timedelta(hours=-3), "here")),
    datetime.datetime(2024, 6, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    datetime.date(2024, 2, 29),
    datetime.time(23, 59, 58, 7, tzinfo=UTC),
    datetime.timedelta(days=-1, microseconds=3),
    complex(-0.0, 2.5),
    b"\0\xff",
    b"",
    bytearray(b"xy"),
    # Keys that stand for values in a checkpoint are ordinary keys of a program.
    {VALUE: ["deque", [1], None]},
    {VALUE: 1, "b": {VALUE: 2}},
    (1, [2.5, None, True, "x"], {"a": torch.ones(2)}),
]


class Box:
    """An object whose state is one value."""

    def __init__(self, value=None):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


@pytest.fixture
def ctx(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with dtrain.init(hparams={"global_batch_size": 4}, checkpoint_dir=tmp_path / "kept") as ctx:
        yield ctx


def assert_same(a, b):
    """Compare values of nested containers with their types, and what equality leaves out."""
    assert type(a) is type(b)
    if isinstance(a, (np.ndarray, np.generic)):
        assert (a.dtype.str, a.shape, a.tobytes()) == (b.dtype.str, b.shape, b.tobytes())
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert_same([*a.items()], [*b.items()])
        assert getattr(a, "default_factory", 0) is getattr(b, "default_factory", 0)
    elif isinstance(a, (list, tuple, deque)):
        assert len(a) == len(b)
        assert getattr(a, "maxlen", 0) == getattr(b, "maxlen", 0)
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    elif isinstance(a, (datetime.datetime, datetime.time)):
        assert (a, a.fold, repr(a.tzinfo)) == (b, b.fold, repr(b.tzinfo))
    else:
        assert repr(a) == repr(b) if isinstance(a, complex) else a == b


def test_values_of_common_types_are_saved_and_restored_exactly(ctx, tmp_path):
    values = [*VALUES, *ARRAYS, *NUMBERS]
    box = Box(values)
    ctx.register(box=box)
    ctx.save_checkpoint(1)
    box.value = None
    assert ctx.restore_checkpoint() == 1
    for restored, value in zip(box.value, values, strict=True):
        assert_same(restored, value)
    # Restored arrays and deques can be changed.
    box.value[len(VALUES)][0, 0] = 9
    box.value[0].extend(range(9))
    assert len(box.value[0]) == 5


def test_what_changes_after_the_save_is_not_in_the_checkpoint(ctx):
    box = Box([np.zeros(3), deque([1]), bytearray(b"a")])
    ctx.register(box=box)
    ctx.save_checkpoint(1)
    box.value[0][:] = 7
    box.value[1].append(2)
    box.value[2] += b"b"
    ctx.restore_checkpoint()
    assert_same(box.value, [np.zeros(3), deque([1]), bytearray(b"a")])


class WithExtraState(torch.nn.Module):
    """A module whose extra state is an array, as its length differs from run to run."""

    def __init__(self, length):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.seen = np.arange(length)

    def get_extra_state(self):
        return {"seen": self.seen}

    def set_extra_state(self, state):
        self.seen = state["seen"]


def test_the_extra_state_of_a_module_is_restored_and_part_of_its_weights(ctx, tmp_path):
    model = ctx.prepare(WithExtraState(5))
    ctx.save_checkpoint(1)
    ctx._saver.finish()
    (saved,) = (tmp_path / "kept").glob("step-*")
    model.seen = np.arange(2)
    ctx.restore_checkpoint()
    assert model.seen.tolist() == [0, 1, 2, 3, 4]
    other = WithExtraState(1)
    dtrain.load_weights(other, saved)
    assert other.seen.tolist() == [0, 1, 2, 3, 4]


def test_a_checkpoint_of_a_newer_format_is_named_although_an_older_one_is_there(ctx, monkeypatch):
    box = Box(1)
    ctx.register(box=box)
    ctx.save_checkpoint(1)
    ctx._saver.finish()
    with monkeypatch.context() as newer:
        newer.setattr(description, "FORMAT", 9)
        ctx.save_checkpoint(2)
        ctx._saver.finish()
    with pytest.raises(CheckpointError, match="step-00000002 has format 9; this version reads format 1. Use"):
        ctx.restore_checkpoint()
    assert box.value == 1


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Score:
    value: float = 0.5


Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024


class Named(dict):
    """A dict of a class that no reader has."""


UNSAVEABLE = {
    "Colour": (Colour.RED, "member.value"),
    "Score": (Score(), "dataclasses.asdict(value)"),
    "Pair": (Pair(1, 2), "value._asdict()"),
    "Named": (Named(), "plain dict: dict(value)"),
    "collections.defaultdict": (defaultdict(lambda: 0), "dict(value), or take one of None, list, int"),
    "numpy.ndarray of objects": (np.array([object()]), "value.tolist()"),
    "numpy.ndarray of records": (np.zeros(2, dtype=[("a", "i4")]), "an array per field"),
    "MaskedArray": (np.ma.zeros(2), "numpy.asarray(value)"),
    "builtins.print": (print, "rebuild the object in load_state_dict"),
}


@pytest.mark.parametrize("what", UNSAVEABLE)
def test_a_value_that_only_a_pickle_could_load_is_refused_with_its_path_and_the_remedy(ctx, what):
    value, remedy = UNSAVEABLE[what]
    ctx.register(box=Box({"a": [1, deque([0, value])]}))
    with pytest.raises(CheckpointError) as raised:
        ctx.save_checkpoint(1)
    assert "The state of 'box' (Box) holds " in str(raised.value)
    assert " at state_dict()['value']['a'][1][1], which " in str(raised.value)
    assert what.split()[0] in str(raised.value)
    assert remedy in str(raised.value)


def test_the_path_of_an_object_without_a_name_and_of_a_key_is_named(ctx):
    ctx.prepare(Box({Colour.RED: 1}))
    with pytest.raises(StateError, match=r"state of others\[0\] \(Box\) holds .* at state_dict\(\)\['value'\] "):
        ctx.save_checkpoint(1)


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def in_itself():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize("value", [nested(120), nested(3000), in_itself()], ids=["120", "3000", "itself"])
def test_a_state_that_is_nested_too_deeply_is_refused_when_it_is_saved(ctx, value):
    ctx.register(box=Box(value))
    with pytest.raises(CheckpointError, match="may have 100 containers inside each other"):
        ctx.save_checkpoint(1)


BYTES = torch.zeros(8, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (["Popen", "rm"], "type 'Popen', which this version does not know. It was written by a newer version"),
        ([], "must be a list"),
        ("deque", "must be a list"),
        ([["deque"], 1], "must be a list"),
        (["deque", [1], -1], "'deque' that cannot be made: maxlen must be non-negative"),
        (["deque", [1], 1 << 80], "'deque' that cannot be made"),
        (["deque", "abc", None], "list expected, got str"),
        (["deque"], "'deque' that cannot be made"),
        (["defaultdict", "eval", []], "'defaultdict' that cannot be made: 'eval'"),
        (["set", [[1]]], "unhashable"),
        (["dict", [1]], "'dict' that cannot be made"),
        (["ndarray", "|O", [1], "C", BYTES], "is no type of numbers"),
        (["ndarray", "i4,i4", [1], "C", BYTES], "is no type of numbers"),
        (["ndarray", "(99999999,)f4", [0], "C", BYTES], "is no type of numbers"),
        (["ndarray", "<f8", [1 << 40, 1 << 40], "C", BYTES], "has not the size of its 8 bytes"),
        (["ndarray", "<f8", [-1, -1], "C", BYTES], "has not the size of its 8 bytes"),
        (["ndarray", "<f8", [1.0], "C", BYTES], "int expected, got float"),
        (["ndarray", "<f8", [1], "C", torch.zeros(1)], "a tensor of bytes is expected"),
        (["ndarray", "<f8", [1], "C", "12345678"], "a tensor of bytes is expected"),
        (["ndarray", "<f8", [1], "Z", BYTES], "order must be"),
        (["ndarray", "<f8", [1], 1, BYTES], "str expected, got int"),
        (["numpy number", "<f8", "00"], "<f8 has 8 bytes, got 1"),
        (["numpy number", "|O", "00" * 8], "is no type of numbers"),
        (["bytes", [1, 2]], "a tensor of bytes is expected"),
        (["Path", 3], "'Path' that cannot be made"),
        (["datetime", [2024, 13, 1], 0, None], "'datetime' that cannot be made"),
        (["datetime", [2024, 1, 1], 0, "utc"], "'datetime' that cannot be made"),
        (["ZoneInfo", "../../etc/passwd"], "'ZoneInfo' that cannot be made"),
        (["ZoneInfo", "Mars/Base"], "does not know the time zone 'Mars/Base'"),
        (["timedelta", 1e300, 0, 0], "'timedelta' that cannot be made"),
    ],
)
def test_a_value_that_lies_is_named_and_nothing_is_made_of_it(document, words):
    with pytest.raises(CheckpointError) as raised:
        decode({"others": [{"x": {VALUE: document}}]})
    assert words in str(raised.value)


def bomb():
    value = [0] * 10
    for _ in range(40):
        value = [value] * 10
    return pickle.dumps(value, protocol=2)


HOSTILE = {
    "100 containers inside each other": lambda: b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".",
    "at most one value per byte": bomb,
}


@pytest.mark.parametrize("words", HOSTILE)
def test_a_file_that_is_nested_too_deeply_or_grows_without_end_is_refused_before_it_is_walked(tmp_path, words):
    usual, hostile = io.BytesIO(), io.BytesIO()
    torch.save([], usual)
    with zipfile.ZipFile(usual) as source, zipfile.ZipFile(hostile, "w") as target:
        for name in source.namelist():
            target.writestr(name, HOSTILE[words]() if name.endswith("data.pkl") else source.read(name))
    found = stored.write(tmp_path, 1, {disk.STATE: hostile.getvalue()}, {})
    with pytest.raises(CheckpointError, match=words):
        reading.everywhere(found, disk.STATE, Distributed(RankEnvironment()))


def test_a_state_without_such_values_is_not_copied():
    state = {"a": [1, (2, "x")], "b": OrderedDict(w=torch.ones(2))}
    assert encode(state) is state
    assert decode(state) is state
