"""``airflow dtrain templates``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_dtrain.cli._output import command
from airflow_provider_dtrain.terminal.output import confirm, hint, is_table, note, show, show_one, user

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_provider_dtrain.hooks.dtrain import DtrainHook
    from airflow_provider_dtrain.resources.templates import Template


@command
def list_templates(args: Namespace) -> None:
    """List the templates."""
    rows = [_row(template, details=args.details) for template in _hook().store.templates.list()]
    show(args, rows, empty="No templates. Add one: airflow dtrain templates set NAME FILE")


@command
def describe(args: Namespace) -> None:
    """Show a template, or one of its earlier versions."""
    found = _hook().store.templates.get(args.name, args.template_version)
    if is_table(args):
        what = f"Template '{found.name}', version {found.version}, {'removed' if found.removed else 'set'}"
        note(f"{what} {found.set_at:%Y-%m-%d %H:%MZ} by {found.set_by}")
        print(found.text, end="" if found.text.endswith("\n") else "\n")
    else:
        show_one(args, _row(found, details=True))


@command
def versions(args: Namespace) -> None:
    """List every version of a template, the latest first."""
    found = sorted(_hook().store.templates.versions(args.name), key=lambda template: -template.version)
    show(args, [{**_row(template, details=False), "removed": template.removed} for template in found])
    hint(f"airflow dtrain templates describe {args.name} --version {found[-1].version}")


@command
def set_template(args: Namespace) -> None:
    """Create or change a template if it is valid."""
    from airflow_provider_dtrain.cli._inputs import check_template, read

    source = read(args.file, what="template")
    check_template(source)
    if args.dry_run:
        note(f"Template '{args.name}' is valid; nothing was stored.")
        return
    version = _hook().store.templates.set(args.name, source.text, by=user())
    show_one(args, {"name": args.name, "version": version})
    hint(f"airflow dtrain configs render CONFIG --template {args.name}")


@command
def remove(args: Namespace) -> None:
    """Remove a template. Its versions stay in the history."""
    store = _hook().store
    template = store.templates.get(args.name)
    if not confirm(f"Remove template '{template.name}' (version {template.version})?", yes=args.yes):
        note("Nothing was changed.")
        return
    store.templates.remove(template.name, by=user())
    note(
        f"Template '{template.name}' is removed. To bring it back: airflow dtrain templates describe {template.name} "
        f"--version {template.version} > FILE, then airflow dtrain templates set {template.name} FILE"
    )


def _hook() -> DtrainHook:
    from airflow_provider_dtrain.hooks.dtrain import DtrainHook

    return DtrainHook()


def _row(template: Template, *, details: bool) -> dict[str, object]:
    row: dict[str, object] = {
        "name": template.name,
        "version": template.version,
        "set_by": template.set_by,
        "set_at": template.set_at,
    }
    return {**row, "text": template.text} if details else row
