"""Templates and checks of configurations on a server."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_dtrain.client.answers import CheckedTemplate, Validation
from airflow_provider_dtrain.client.common_answers import Message
from airflow_provider_dtrain.client.session import Session
from airflow_provider_dtrain.client.submission import problem_texts, raise_problems
from airflow_provider_dtrain.resources.explanations import Explanation
from airflow_provider_dtrain.resources.templates import Template, TemplateList
from airflow_provider_dtrain.terminal.documents import CheckedText

if TYPE_CHECKING:
    from airflow_provider_dtrain.terminal.input_text import InputText


class ServerDocuments:
    """Templates and checks of configurations, with the rights of the user whom the server knows."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def templates(self, *, with_text: bool) -> list[Template]:
        """Return the current version of each template, by name."""
        return self.session.get("/templates", texts=with_text).record(TemplateList).rows

    def template(self, name: str, version: int | None) -> Template:
        """Return a version of a template, None = the current one."""
        return self.session.get(f"/templates/{name}", version=version).record(Template)

    def template_versions(self, name: str) -> list[Template]:
        """Return every version of a template without its text, oldest first."""
        return self.session.get(f"/templates/{name}/versions").record(TemplateList).rows

    def check_template(self, given: InputText) -> CheckedText:
        """Check a text as a template."""
        found = self.session.send("POST", "/templates/validate", {"text": given.text}).record(CheckedTemplate)
        raise_problems(found.problems, given.name)
        return CheckedText(warnings=problem_texts(found.problems))

    def set_template(self, name: str, given: InputText) -> Template:
        """Store a text as the next version of a template, if it is valid."""
        return self.session.send("PUT", f"/templates/{name}", {"text": given.text}).record(Template)

    def remove_template(self, name: str) -> None:
        """Remove a template. Its versions stay."""
        self.session.send("DELETE", f"/templates/{name}").record(Message)

    def check_config(self, given: InputText, template: str | None) -> CheckedText:
        """Check a configuration. The code is sent later, so the server does not check its lock file."""
        body = {"config": given.text, "template": template, "payload": ""}
        found = self.session.send("POST", "/configs/validate", body).record(Validation)
        raise_problems(found.problems, given.name)
        pool = None if found.summary is None else found.summary.pool
        return CheckedText(pool=pool, warnings=problem_texts(found.problems))

    def explain_config(self, given: InputText, template: str | None) -> Explanation:
        """Explain whether and when a configuration would get slots."""
        body = {"config": given.text, "template": template}
        found = self.session.send("POST", "/configs/explain", body).record(Explanation)
        return replace(found, request=given.name)

    def explain_trial(self, trial_id: int) -> Explanation:
        """Explain where a trial runs, or why it waits."""
        return self.session.get(f"/trials/{trial_id}/explanation").record(Explanation)

    def explain_gang(self, allocation_id: int) -> Explanation:
        """Explain where a gang runs, or why it waits."""
        return self.session.get(f"/gangs/{allocation_id}/explanation").record(Explanation)
