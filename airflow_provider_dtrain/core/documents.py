"""Types of values whose shape a user or another program decides."""

from __future__ import annotations

from typing import Any, TypeAlias

#: A JSON object of a file, a message or a column. Its reader checks the fields that it uses.
JsonObject: TypeAlias = dict[str, Any]
#: A configuration, or a section of one, as a user writes it. :class:`ExperimentConfig` checks it.
ConfigDocument: TypeAlias = dict[str, Any]
#: Values of hyperparameters by name. A group of them is an object. A user chooses the names.
Hyperparameters: TypeAlias = dict[str, Any]
