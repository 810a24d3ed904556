"""Files that a checkpoint must not hold."""

from __future__ import annotations

import io
import pickle

import pytest

torch = pytest.importorskip("torch")

from airflow_provider_dtrain.train.distributed import load_bytes  # noqa: E402
from airflow_provider_dtrain.train.errors import CheckpointError  # noqa: E402

pytestmark = pytest.mark.torch


RAN = []


class Malicious:
    def __reduce__(self):
        return RAN.append, (1,)


@pytest.mark.parametrize("whole", [True, False], ids=["torch.save", "raw pickle"])
def test_a_pickle_in_a_checkpoint_is_named_and_not_run(whole):
    content = io.BytesIO()
    if whole:
        torch.save({"models": [Malicious()]}, content)
    else:
        content.write(pickle.dumps({"models": [Malicious()]}))
    with pytest.raises(CheckpointError, match="only a pickle could load.*Nothing of it was run") as raised:
        load_bytes(content.getvalue())
    assert "weights_only" not in str(raised.value)
    assert RAN == []
