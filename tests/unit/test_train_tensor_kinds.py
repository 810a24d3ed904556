"""Kinds of tensors in checkpoints: any order of their numbers in memory, and classes of other libraries."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import airflow_provider_dtrain.train as dtrain  # noqa: E402
from airflow_provider_dtrain.train.checkpoint.save_plan import strides_of  # noqa: E402
from airflow_provider_dtrain.train.checkpoint.tensor_file import row_by_row  # noqa: E402
from airflow_provider_dtrain.train.checkpoint.tensor_index import TensorIndex, _strides  # noqa: E402
from airflow_provider_dtrain.train.prepared import parameters_sha256  # noqa: E402

two_tensor = pytest.importorskip("torch.testing._internal.two_tensor")
TwoTensor = two_tensor.TwoTensor


class Box:
    """Keeps one value as its state."""

    def __init__(self, value=None):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


@contextlib.contextmanager
def begun(folder):
    with dtrain.init(hparams={"global_batch_size": 4}, checkpoint_dir=folder) as ctx:
        yield ctx


def through_a_checkpoint(folder, value):
    """Return a value as a new process gets it from the checkpoint of a registered object."""
    with begun(folder) as ctx:
        ctx.register(box=Box(value))
        ctx.save_checkpoint(1)
    with begun(folder) as ctx:
        box = Box()
        ctx.register(box=box)
        assert ctx.restore_checkpoint() == 1
    return box.value


@st.composite
def layouts(draw):
    """Draw a tensor with any order of its dimensions, gaps between its numbers, and repeated ones."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    order = draw(st.permutations(range(len(shape))))
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape).permute(order)
    tensor = tensor[tuple(slice(None, None, draw(st.integers(1, 2))) for _ in shape)]
    repeated = draw(st.sampled_from([None, *range(tensor.dim())]))
    if repeated is not None:
        tensor = tensor.narrow(repeated, 0, 1).expand(tensor.shape)
    return tensor


@given(layouts())
def test_the_strides_in_an_index_are_those_of_a_copy_and_pass_its_check(tensor):
    found = strides_of(tensor)
    expected = tensor.clone()
    assert (row_by_row(tensor.shape) if found is None else found) == expected.stride()
    if found is not None:
        _strides(list(found), tuple(tensor.shape))


@given(st.lists(st.integers(0, 4), max_size=4))
def test_the_strides_of_rows_are_those_of_a_new_tensor(shape):
    assert row_by_row(shape) == torch.empty(shape).stride()


def test_the_order_of_numbers_in_memory_survives_a_checkpoint(tmp_path):
    numbers = torch.arange(24.0)
    saved = {
        "transposed": numbers.reshape(4, 6).t(),
        "channels_last": numbers.reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "permuted": numbers.reshape(2, 3, 4).permute(2, 0, 1),
        "gaps": numbers.reshape(4, 6)[:, ::2].t(),
        "repeated": torch.arange(3.0).expand(4, 3),
        "rows": numbers.reshape(4, 6),
        "one": numbers[:1].reshape(1, 1),
    }
    found = through_a_checkpoint(tmp_path, saved)
    for name, tensor in saved.items():
        assert torch.equal(found[name], tensor), name
        assert found[name].stride() == tensor.clone().stride(), name


def test_a_state_that_has_another_order_in_a_new_process_gets_the_saved_one(tmp_path):
    saved = torch.arange(24.0).reshape(4, 6).t()
    with begun(tmp_path) as ctx:
        ctx.register(box=Box(saved))
        ctx.save_checkpoint(1)
    with begun(tmp_path) as ctx:
        box = Box(torch.zeros(6, 4))
        ctx.register(box=box)
        ctx.restore_checkpoint()
    assert (box.value.stride(), box.value.tolist()) == (saved.stride(), saved.tolist())


def test_a_state_that_an_optimizer_holds_in_another_order_gets_the_saved_one(tmp_path):
    with begun(tmp_path) as ctx:
        model = torch.nn.Linear(3, 3)
        model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
        ctx.backward(model(torch.ones(2, 3)).square().sum())
        ctx.step(optimizer)
        held = optimizer.state[model.weight]
        held["momentum_buffer"] = saved = held["momentum_buffer"].t().contiguous().t()
        ctx.save_checkpoint(1)
        held["momentum_buffer"] = torch.zeros(3, 3)
        ctx.restore_checkpoint()
        found = optimizer.state[model.weight]["momentum_buffer"]
    assert (found.stride(), found.tolist()) == ((1, 3), saved.tolist())


def test_a_tensor_and_a_transposed_view_of_it_are_two_tensors(tmp_path):
    square = torch.arange(9.0).reshape(3, 3)
    found = through_a_checkpoint(tmp_path, [square, square.t()])
    assert torch.equal(found[0], found[1].t())
    assert [one.stride() for one in found] == [(3, 1), (1, 3)]


@pytest.mark.parametrize("strides", [[1], [4, 2], [0, 1], [-1, 1], [1, 3], ["1", 4], [True, 4], None])
def test_strides_that_do_not_fit_their_tensor_are_refused(strides):
    entry = {"dtype": "F32", "shape": [4, 2], "sharded": False, "chunks": [["a.safetensors", 0, [0, 0], [4, 2]]]}
    text = json.dumps({"w": {**entry, "strides": strides}}).encode()
    with pytest.raises(dtrain.DamagedCheckpointError):
        TensorIndex.parse(text, {"a.safetensors": {"size_bytes": 1 << 20}})
    text = json.dumps({"w": {**entry, "strides": [1, 4]}}).encode()
    assert TensorIndex.parse(text, {"a.safetensors": {"size_bytes": 1 << 20}})["w"].strides == (1, 4)


def trained(folder, make, *, upto):
    """Return the losses of a training with an optimizer, which resumes where the former call has ended."""
    with begun(folder) as ctx:
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
        model, optimizer = ctx.prepare(model, make(model.parameters()))
        done = ctx.restore_checkpoint()
        losses = []
        for step in range(done + 1, upto + 1):
            rows = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
            loss = model(rows).square().mean()
            ctx.backward(loss)
            ctx.step(optimizer)
            losses.append(loss.item())
        ctx.save_checkpoint(upto)
    return losses, parameters_sha256(model)


def adam_8bit(parameters):
    optim = pytest.importorskip("torchao.optim", exc_type=ImportError)
    return optim.AdamW8bit(parameters, lr=0.01)


def soap(parameters):
    return pytest.importorskip("pytorch_optimizer").SOAP(parameters, lr=0.01)


@pytest.fixture
def eager():
    """Compile nothing: an optimizer's compiled step takes 15 s to compile."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("make", [adam_8bit, soap])
def test_an_optimizer_of_another_library_resumes_bit_for_bit(tmp_path, make):
    expected, weights = trained(tmp_path / "unbroken", make, upto=6)
    first, _ = trained(tmp_path / "broken", make, upto=3)
    second, resumed = trained(tmp_path / "broken", make, upto=6)
    assert [*first, *second] == expected
    assert resumed == weights


@pytest.fixture
def known():
    with torch.serialization.safe_globals([TwoTensor]):
        yield


@pytest.mark.usefixtures("known")
def test_a_tensor_made_of_tensors_is_saved_with_its_parts(tmp_path):
    value = TwoTensor(torch.arange(6.0).reshape(2, 3).t(), torch.ones(2, 3).t())
    found = through_a_checkpoint(tmp_path, {"deep": [value]})["deep"][0]
    assert type(found) is TwoTensor
    assert torch.equal(found.a, value.a)
    assert torch.equal(found.b, value.b)
    assert (found.stride(), found.a.stride()) == ((1, 3), (1, 3))


@pytest.mark.usefixtures("known")
def test_a_copy_of_a_tensor_made_of_tensors_does_not_change_with_the_training(tmp_path):
    value = TwoTensor(torch.zeros(3), torch.ones(3))
    with begun(tmp_path) as ctx:
        ctx.register(box=Box(value))
        ctx.save_checkpoint(1)
        value.a.fill_(7)
    with begun(tmp_path) as ctx:
        box = Box()
        ctx.register(box=box)
        ctx.restore_checkpoint()
    assert box.value.a.tolist() == [0, 0, 0]


def test_a_class_that_torch_may_not_make_is_named_when_it_is_restored(tmp_path):
    with torch.serialization.safe_globals([TwoTensor]), begun(tmp_path) as ctx:
        ctx.register(box=Box(TwoTensor(torch.zeros(3), torch.ones(3))))
        ctx.save_checkpoint(1)
    with begun(tmp_path) as ctx:
        ctx.register(box=Box())
        with pytest.raises(dtrain.CheckpointError, match=r"TwoTensor, which is not in the list .*add_safe_globals"):
            ctx.restore_checkpoint()


class WithTwo(torch.nn.Module):
    def __init__(self, *, as_buffer):
        super().__init__()
        value = TwoTensor(torch.arange(4.0), torch.ones(4))
        self.plain = torch.nn.Linear(2, 2)
        if as_buffer:
            self.register_buffer("two", value)
        else:
            self.two = torch.nn.Parameter(value)


@pytest.mark.parametrize("as_buffer", [False, True])
def test_a_model_with_a_class_that_no_checkpoint_holds_is_refused_before_it_trains(tmp_path, as_buffer):
    with begun(tmp_path) as ctx, pytest.raises(dtrain.SetupError, match=r"two of WithTwo is a .*TwoTensor.*add_safe"):
        ctx.prepare(WithTwo(as_buffer=as_buffer), wrap=False)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("as_buffer", [False, True])
def test_a_model_with_tensors_made_of_tensors_is_restored(tmp_path, as_buffer):
    with begun(tmp_path) as ctx:
        model = ctx.prepare(WithTwo(as_buffer=as_buffer), wrap=False)
        with torch.no_grad():
            model.two.a.add_(3)
        ctx.save_checkpoint(1)
        kept = parameters_sha256(model)
    with begun(tmp_path) as ctx:
        model = ctx.prepare(WithTwo(as_buffer=as_buffer), wrap=False)
        ctx.restore_checkpoint()
        assert model.two.a.tolist() == [3, 4, 5, 6]
        assert parameters_sha256(model) == kept


class Named(torch.nn.Parameter):
    """A class of a program's own, with the memory of a plain tensor."""


def test_a_parameter_of_a_class_of_the_programs_own_is_saved_as_a_plain_tensor(tmp_path):
    def model():
        made = torch.nn.Linear(2, 2)
        made.weight = Named(torch.zeros(2, 2))
        return made

    with begun(tmp_path) as ctx:
        saved = ctx.prepare(model())
        with torch.no_grad():
            saved.weight.fill_(3)
        where = ctx.save_checkpoint(1)
    with begun(tmp_path) as ctx:
        found = ctx.prepare(model())
        ctx.restore_checkpoint()
        assert type(found.weight) is Named
        assert found.weight.tolist() == [[3, 3], [3, 3]]
    other = torch.nn.Linear(2, 2)
    dtrain.load_weights(other, where)
    assert other.weight.tolist() == [[3, 3], [3, 3]]
