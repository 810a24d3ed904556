"""Templates and checks of configurations in this process, with all rights.

The models of configurations are imported where they are used: most commands need none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._store_source import StoreSource
from airflow_provider_dtrain.errors import ConfigError, UnsupportedFieldError
from airflow_provider_dtrain.terminal.documents import CheckedText
from airflow_provider_dtrain.terminal.output import user

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_dtrain.cli._inputs import InputDocument
    from airflow_provider_dtrain.core.config import ExperimentConfig
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.resources.explanations import Explanation
    from airflow_provider_dtrain.resources.templates import Template
    from airflow_provider_dtrain.terminal.input_text import InputText


class StoreDocuments:
    """Templates of the store, and checks of configurations in this process."""

    def __init__(self, hook: DtrainHook) -> None:
        self.hook = hook
        self.rights = StoreSource(hook.store).rights

    def templates(self, *, with_text: bool) -> list[Template]:
        """Return the current version of each template, by name."""
        return self.hook.store.templates.list()

    def template(self, name: str, version: int | None) -> Template:
        """Return a version of a template, None = the current one."""
        return self.hook.store.templates.get(name, version)

    def template_versions(self, name: str) -> list[Template]:
        """Return every version of a template, oldest first."""
        return self.hook.store.templates.versions(name)

    def check_template(self, given: InputText) -> CheckedText:
        """Check a text as a template."""
        from airflow_provider_dtrain.cli._inputs import parsed
        from airflow_provider_dtrain.core.config.partial import checked_partial

        document = parsed(given).document
        return CheckedText(warnings=tuple(checked_partial(document, given.name)))

    def set_template(self, name: str, given: InputText) -> Template:
        """Store a text as the next version of a template, if it is valid."""
        self.check_template(given)
        return self.template(name, self.hook.store.templates.set(name, given.text, by=user()))

    def remove_template(self, name: str) -> None:
        """Remove a template. Its versions stay."""
        self.hook.store.templates.remove(name, by=user())

    def check_config(self, given: InputText, template: str | None) -> CheckedText:
        """Check a configuration, and the lock file in its folder."""
        from airflow_provider_dtrain.cli._inputs import assemble, parsed
        from airflow_provider_dtrain.core.config import unsupported

        source = parsed(given)
        found = assemble(self.hook, source, template)
        effective = found.effective
        if problems := unsupported(effective.config, effective.origins):
            raise UnsupportedFieldError(problems, source=source.name)
        warnings = (*effective.warnings, *_warnings_of_environment(effective.config, source))
        return CheckedText(pool=found.pool, warnings=warnings)

    def explain_config(self, given: InputText, template: str | None) -> Explanation:
        """Explain whether and when a configuration would get slots."""
        from airflow_provider_dtrain.cli._inputs import assemble, parsed
        from airflow_provider_dtrain.cli._schedulers import refresh_facts
        from airflow_provider_dtrain.core.config import refuse_unsupported
        from airflow_provider_dtrain.engine.submission.explanation import explain_config

        found = assemble(self.hook, parsed(given), template)
        refuse_unsupported(found.effective.config, found.effective.origins)
        self.hook.ensure_local()
        refresh_facts(self.hook, found.pool)
        return explain_config(self.hook.store, found.pool, found.effective.config, given.name)

    def explain_trial(self, trial_id: int) -> Explanation:
        """Explain where a trial runs, or why it waits."""
        from airflow_provider_dtrain.engine.submission.explanation import explain_trial

        return explain_trial(self.hook.store, self.rights, trial_id)

    def explain_gang(self, allocation_id: int) -> Explanation:
        """Explain where a gang runs, or why it waits."""
        from airflow_provider_dtrain.engine.submission.explanation import explain_gang

        return explain_gang(self.hook.store, self.rights, allocation_id)


def _warnings_of_environment(config: ExperimentConfig, source: InputDocument) -> Iterator[str]:
    """Yield what the lock file of a configuration lacks for a platform like this machine.

    Code that is not beside the configuration is checked when it is sent.

    :raises ConfigError: the lock file has a problem
    """
    from airflow_provider_dtrain.core.lock_files.platform import this_platform
    from airflow_provider_dtrain.engine.submission.entry import environment_in

    folder = source.folder / (config.model_dir or ".")
    if config.environment.requirements is None and config.environment.setup is None:
        return
    if not folder.is_dir():
        yield f"environment: the code is not in {folder}; its lock file was not checked."
        return
    environment, problems = environment_in(config, folder)
    if problems:
        raise ConfigError(problems, source=source.name)
    if environment is not None:
        for gap in environment.gaps(this_platform(config.environment.python)):
            yield f"environment.requirements: {gap}"
