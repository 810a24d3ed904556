"""Types of values whose shape user code, a library or another program decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    import torch

#: A JSON object of a file or a message. Its reader checks the fields that it uses.
JsonObject = dict[str, Any]
#: Values of hyperparameters by name. A group of them is an object. A user chooses the names.
Hyperparameters = dict[str, Any]
#: State of an object for a checkpoint: numbers, texts, tensors, lists and dicts, as its class defines it.
StateDict = dict[str, Any]
#: Tensors by name.
Tensors = dict[str, "torch.Tensor"]
#: Metrics by name: numbers, tensors with one number, and other values that become JSON.
Metrics = dict[str, Any]
#: A group of parameters and its settings, as an optimizer of torch takes it.
ParameterGroup = dict[str, Any]
#: Keyword arguments of a library's function, which defines them.
Options = dict[str, Any]


class FileFacts(TypedDict):
    """Size and sha256 of a file in the metadata of a checkpoint."""

    size_bytes: int
    sha256: str
