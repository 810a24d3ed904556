"""Operator for one batch inference: it reads inputs in shards on a gang of slots, and writes each result once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

from airflow_provider_dtrain.assets import announce_outputs, outputs_alias, outputs_asset
from airflow_provider_dtrain.core.documents import ConfigDocument
from airflow_provider_dtrain.hooks.arguments import COUNT, PATHS, PLACE, TEXT, UNKNOWN, Kind, known, text_of_path
from airflow_provider_dtrain.operators.trial import TrialOperator

if TYPE_CHECKING:
    from pathlib import Path

    from airflow.sdk import Context

    from airflow_provider_dtrain.engine.attempt.xcom_result import TrialResult
    from airflow_provider_dtrain.operators._several_trials import SeveralResults
    from airflow_provider_dtrain.store.records.gangs import GangView
    from airflow_provider_dtrain.triggers.trial import TrialsEvent

#: Arguments that are fields of the section ``inference``.
_FIELDS: Final = ("processor", "inputs", "outputs", "weights", "batch_size", "on_bad_shard", "on_bad_row")


class BatchInferenceOperator(TrialOperator):
    """Runs a batch inference on a gang of slots.

    It waits, restarts, is preempted and deferred like a ``TrialOperator``. Its arguments override the section
    ``inference`` of the configuration, which may be absent. A run into a folder with results of the same inputs, code,
    weights and processor computes only what is missing.

    XCom: that of a ``TrialOperator``, and ``manifest`` with ``location, rows, shards, bytes, skipped, sha256, schema``.
    The end of the task is an event of its outlets with the XCom as ``extra``. Without ``outlets``, the outlet is
    the asset of the output folder, or, if a template names the folder, the alias ``dtrain-outputs-<dag>.<task>``.

    :param config: experiment configuration as for a ``TrialOperator``; None = the arguments below say everything
        (templated)
    :param processor: ``module:Name`` of a ``BatchProcessor``, a function ``batch -> rows`` or a trial class (templated)
    :param inputs: path or URL, several, or the fields of ``inference.inputs``; None = the processor builds the data set
        (templated)
    :param outputs: folder or URL, or the fields of ``inference.outputs`` (templated)
    :param weights: XCom of the task that trained the model, or any form of ``inference.weights``; None = no weights
        (templated)
    :param batch_size: rows per batch, or ``auto``; None = the configuration's, else 64 (templated)
    :param on_bad_shard: ``fail`` or ``skip``; None = the configuration's, else ``fail`` (templated)
    :param on_bad_row: ``fail``, ``skip`` or ``mark``; None = the configuration's, else ``fail`` (templated)
    :param slots: number of slots of the gang; None = the configuration's, else 1 (templated)
    :param host_pool: pool of hosts; None = the configuration's (templated)
    """

    template_fields: Sequence[str] = (*TrialOperator.template_fields, *_FIELDS, "slots", "host_pool")
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **TrialOperator.template_fields_renderers, "inputs": "json", "outputs": "json", "weights": "json",
    }  # fmt: skip
    ui_color = "#e0f2f1"
    ARGUMENTS: ClassVar[Mapping[str, Kind]] = {
        **TrialOperator.ARGUMENTS, "processor": TEXT, "inputs": PATHS, "outputs": PLACE, "weights": PLACE,
        "batch_size": COUNT, "on_bad_shard": TEXT, "on_bad_row": TEXT, "slots": COUNT, "host_pool": TEXT,
    }  # fmt: skip

    def __init__(
        self,
        *,
        config: str | Mapping[str, Any] | None = None,
        processor: str | None = None,
        inputs: str | Sequence[str] | Mapping[str, Any] | None = None,
        outputs: str | Mapping[str, Any] | None = None,
        weights: str | Mapping[str, Any] | None = None,
        batch_size: int | str | None = None,
        on_bad_shard: str | None = None,
        on_bad_row: str | None = None,
        slots: int | str | None = None,
        host_pool: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(config=config, **kwargs)
        self.processor = processor
        self.inputs = text_of_path(inputs)
        self.outputs = text_of_path(outputs)
        self.weights = text_of_path(weights)
        self.batch_size = batch_size
        self.on_bad_shard = on_bad_shard
        self.on_bad_row = on_bad_row
        self.slots = slots
        self.host_pool = host_pool
        own = {name: getattr(self, name) for name in (*_FIELDS, "slots", "host_pool")}
        self.check_arguments(self.task_id, {"config": None if config is None else UNKNOWN, **own})
        if not self.outlets and (location := _known_location(outputs)) is not None:
            self.outlets = [outputs_asset(location)]

    @classmethod
    def documents(cls, given: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
        """Yield the configuration with its overrides, the template, and the section that the other arguments make."""
        from airflow_provider_dtrain.engine.submission.inference import with_inference

        yield from super().documents(given)
        fields = {name: text_of_path(known(given.get(name))) for name in _FIELDS}
        # The configuration may name the input to which the arguments add fields.
        below = {"inference": {"inputs": {"path": UNKNOWN}}} if given.get("config") is not None else {}
        slots, host_pool = given.get("slots"), given.get("host_pool")
        if any(value is not None for value in (*fields.values(), slots, host_pool)):
            yield "", with_inference(below, fields, slots=known(slots), host_pool=known(host_pool)), False

    def execute(self, context: Context) -> TrialResult | SeveralResults | None:
        """Run the inference to its end, or defer to the triggerer. Raises like a ``TrialOperator``."""
        result = super().execute(context)
        self._announce(context, result)
        return result

    def execute_complete(
        self, context: Context, event: TrialsEvent | None = None
    ) -> TrialResult | SeveralResults | None:
        """Return the result of the inference. Raises like :meth:`execute`.

        :param event: event of the trigger
        """
        result = super().execute_complete(context, event)
        self._announce(context, result)
        return result

    def _configured(self, folder: Path, held: GangView | None) -> str | Mapping[str, Any] | None:
        from airflow_provider_dtrain.core.config.forms import is_rendered
        from airflow_provider_dtrain.engine.submission.inference import with_inference
        from airflow_provider_dtrain.engine.submission.submit import overridden, read_document
        from airflow_provider_dtrain.errors import ConfigError, Problem

        fields = self._fields()
        config = overridden(self.config or {}, self.overrides, folder)
        if is_rendered(config):
            own = {**fields, "slots": self.slots, "host_pool": self.host_pool}
            given = [name for name, value in own.items() if value is not None]
            if given:
                message = "belongs to the task that renders the configuration; this task gets a rendered one"
                raise ConfigError([Problem(path=name, message=message) for name in given])
            return config
        return with_inference(
            read_document(config, folder, what="configuration"),
            fields,
            slots=self.slots,
            host_pool=self.host_pool,
            held_slots=held.slots if held is not None else None,
        )

    def _fields(self) -> ConfigDocument:
        return {name: getattr(self, name) for name in _FIELDS}

    def _announce(self, context: Context, given: TrialResult | SeveralResults | None) -> None:
        """Add the manifest to the events of the outlets. Of several trials, the best one announces its own."""
        if given is None or not given.get("manifest"):
            return
        result = cast("TrialResult", given)
        if not self.outlets:
            # Airflow accepts no events of other aliases.
            self.outlets = [outputs_alias(f"{self.dag_id}.{self.task_id}")]
        announce_outputs(context, self.outlets, result)


def _known_location(outputs: object) -> str | None:
    """Return the output folder that the DAG file itself names, or None for a template or an XCom."""
    path = outputs.get("path") if isinstance(outputs, Mapping) else outputs
    if not isinstance(path, str) or "{{" in path or "{%" in path:
        return None
    return path if path.startswith("/") or "://" in path else None
