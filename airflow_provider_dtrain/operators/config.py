"""Operator that renders the effective configuration of an experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_provider_dtrain.hooks.arguments import DOCUMENT, MAP, CheckedArguments, Kind, configured, text_of_path
from airflow_provider_dtrain.hooks.tasks import failing_at_once, task_facts

if TYPE_CHECKING:
    from airflow.sdk import Context


class RenderConfigOperator(CheckedArguments, BaseOperator):
    """Merges a template and a configuration, validates the result and stores it.

    XCom: ``{"config_id": int, "digest": str}``. The document itself is in the provider's store, and
    ``airflow dtrain`` shows it. Pass the XCom as ``config`` to a ``TrialOperator``.

    :param config: experiment configuration: a path (relative to the DAG file), YAML text, or a dict
        (templated)
    :param overrides: dotted path, e.g. ``hyperparameters.lr`` -> value that replaces the one in the configuration. A
        text is parsed as a YAML scalar, so that ``"{{ params.lr }}"`` becomes a number (templated)
    :param template: name of a stored template, a path, or a dict; None = the template that the
        configuration names, if any (templated)
    """

    template_fields: Sequence[str] = ("config", "template", "overrides")
    template_fields_renderers: ClassVar[dict[str, str]] = {"config": "yaml", "template": "yaml"}
    ui_color = "#e8f0fe"
    ARGUMENTS: ClassVar[Mapping[str, Kind]] = {"config": DOCUMENT, "template": DOCUMENT, "overrides": MAP}

    def __init__(
        self,
        *,
        config: str | Mapping[str, Any],
        template: str | Mapping[str, Any] | None = None,
        overrides: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.check_arguments(self.task_id, {"config": config, "template": template, "overrides": overrides})
        self.config = text_of_path(config)
        self.template = text_of_path(template)
        self.overrides = overrides

    @classmethod
    def documents(cls, given: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
        """Yield the configuration with its overrides, and the template."""
        return configured(given)

    def execute(self, context: Context) -> dict[str, int | str]:
        """Return the ID and digest of the stored configuration.

        :raises AirflowFailException: the documents are not valid; all problems are in the log
        """
        from airflow_provider_dtrain.engine.submission.submit import overridden, render
        from airflow_provider_dtrain.hooks.dtrain import DtrainHook

        with failing_at_once():
            folder = task_facts(context).folder
            config = overridden(self.config, self.overrides, folder)
            stored = render(DtrainHook(), config, self.template, folder)
        self.log.info("Configuration %d (%s)", stored.config_id, stored.digest[:12])
        return {"config_id": stored.config_id, "digest": stored.digest}
