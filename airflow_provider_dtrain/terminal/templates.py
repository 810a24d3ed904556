"""Commands for templates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.terminal.input_text import read_input
from airflow_provider_dtrain.terminal.output import confirm, hint, is_table, note, show, show_one

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.resources.templates import Template
    from airflow_provider_dtrain.terminal.documents import Documents


def list_templates(args: Namespace, documents: Documents) -> None:
    """List the templates."""
    rows = [_row(template, details=args.details) for template in documents.templates(with_text=args.details)]
    show(args, rows, empty="No templates. Add one: airflow dtrain templates set NAME FILE")


def describe(args: Namespace, documents: Documents) -> None:
    """Show a template, or one of its earlier versions."""
    found = documents.template(args.name, args.template_version)
    if is_table(args):
        what = f"Template '{found.name}', version {found.version}, {'removed' if found.removed else 'set'}"
        note(f"{what} {found.set_at:%Y-%m-%d %H:%MZ} by {found.set_by}")
        print(found.text, end="" if found.text.endswith("\n") else "\n")
    else:
        show_one(args, _row(found, details=True))


def versions(args: Namespace, documents: Documents) -> None:
    """List every version of a template, the latest first."""
    found = sorted(documents.template_versions(args.name), key=lambda template: -template.version)
    show(args, [{**_row(template, details=False), "removed": template.removed} for template in found])
    hint(f"airflow dtrain templates describe {args.name} --version {found[-1].version}")


def set_template(args: Namespace, documents: Documents) -> None:
    """Create or change a template if it is valid."""
    given = read_input(args.file, what="template")
    for warning in documents.check_template(given).warnings:
        note(f"Warning: {warning}")
    if args.dry_run:
        note(f"Template '{args.name}' is valid; nothing was stored.")
        return
    stored = documents.set_template(args.name, given)
    show_one(args, {"name": stored.name, "version": stored.version})
    hint(f"airflow dtrain configs validate CONFIG --template {args.name}")


def remove(args: Namespace, documents: Documents) -> None:
    """Remove a template. Its versions stay in the history."""
    template = documents.template(args.name, None)
    if not confirm(f"Remove template '{template.name}' (version {template.version})?", yes=args.yes):
        note("Nothing was changed.")
        return
    documents.remove_template(template.name)
    note(
        f"Template '{template.name}' is removed. To bring it back: airflow dtrain templates describe {template.name} "
        f"--version {template.version} > FILE, then airflow dtrain templates set {template.name} FILE"
    )


def _row(template: Template, *, details: bool) -> dict[str, object]:
    row: dict[str, object] = {
        "name": template.name,
        "version": template.version,
        "set_by": template.set_by,
        "set_at": template.set_at,
    }
    return {**row, "text": template.text} if details else row
