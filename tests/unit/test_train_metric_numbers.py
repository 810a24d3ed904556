"""Values that are metrics: one number of any library, and never a text."""

from __future__ import annotations

import datetime
import decimal
import fractions

import pytest

from airflow_provider_dtrain.train.errors import MetricError
from airflow_provider_dtrain.train.integrations.scalars import numbers_of
from airflow_provider_dtrain.train.reports.reducers import number

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

NUMBERS = {
    "bool": True, "int": 3, "decimal": decimal.Decimal("0.5"), "fraction": fractions.Fraction(1, 2),
    "numpy": np.float32(0.5), "numpy integer": np.int64(3), "0-d array": np.array(0.5), "array": np.array([2.5]),
    "matrix": np.array([[2.5]]), "object array": np.array([3], dtype=object), "tensor": torch.tensor([[0.5]]),
    "bf16": torch.tensor(0.5, dtype=torch.bfloat16), "gradient": torch.tensor(0.5, requires_grad=True),
}  # fmt: skip
NO_NUMBERS = {
    "text": "0.5", "word": "high", "bytes": b"0.5", "numpy text": np.array(["0.5"]), "numpy str": np.str_("0.5"),
    "none": None, "list": [1, 2], "one in a list": [1], "dict": {}, "two": np.zeros(2), "no": np.zeros(0),
    "tensors": torch.zeros(2), "complex": 1j, "complex tensor": torch.tensor(1j), "date": datetime.date(2024, 1, 2),
    "large": 10**400, "fraction": fractions.Fraction(10**400),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_one_number_of_any_library_is_a_metric(name):
    found = number("x", NUMBERS[name])
    assert found == float(NUMBERS[name].item() if hasattr(NUMBERS[name], "item") else NUMBERS[name])
    assert numbers_of({"x": NUMBERS[name]}) == ({} if name == "bool" else {"x": found})


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_a_metric_that_is_no_number_is_refused_by_name(name):
    with pytest.raises(MetricError, match="Metric 'x' must be") as caught:
        number("x", NO_NUMBERS[name])
    assert len(str(caught.value)) < 250
    assert numbers_of({"x": NO_NUMBERS[name]}) == {}
