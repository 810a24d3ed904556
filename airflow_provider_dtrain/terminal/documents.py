"""The port through which commands reach templates, and checks of configurations that are not stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from airflow_provider_dtrain.resources.explanations import Explanation
    from airflow_provider_dtrain.resources.templates import Template
    from airflow_provider_dtrain.terminal.input_text import InputText


@dataclass(frozen=True, kw_only=True)
class CheckedText:
    """A configuration or a template without problems."""

    #: Pool of a configuration; None for a template.
    pool: str | None = None
    warnings: tuple[str, ...] = ()


class Documents(Protocol):
    """The store and the checks of this process, or those of a server.

    A name or id that does not exist raises NotFoundError, a text with problems ConfigError with all of them.
    """

    def templates(self, *, with_text: bool) -> list[Template]:
        """Return the current version of each template, by name."""

    def template(self, name: str, version: int | None) -> Template:
        """Return a version of a template, None = the current one."""

    def template_versions(self, name: str) -> list[Template]:
        """Return every version of a template without its text, oldest first."""

    def check_template(self, given: InputText) -> CheckedText:
        """Check a text as a template."""

    def set_template(self, name: str, given: InputText) -> Template:
        """Store a text as the next version of a template, if it is valid."""

    def remove_template(self, name: str) -> None:
        """Remove a template. Its versions stay."""

    def check_config(self, given: InputText, template: str | None) -> CheckedText:
        """Check a configuration.

        :param template: None = the one that the configuration names
        """

    def explain_config(self, given: InputText, template: str | None) -> Explanation:
        """Explain whether and when a configuration would get slots."""

    def explain_trial(self, trial_id: int) -> Explanation:
        """Explain where a trial runs, or why it waits."""

    def explain_gang(self, allocation_id: int) -> Explanation:
        """Explain where a gang runs, or why it waits."""
