"""Reference pages of the documentation site, made from the code: commands, configuration, HTTP API, Python API."""

from __future__ import annotations

import ast
import inspect
import json
import sys
import tokenize
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from airflow_provider_dtrain.client.definition import commands as client_commands  # noqa: E402
from airflow_provider_dtrain.core.config.experiment import ExperimentConfig  # noqa: E402
from airflow_provider_dtrain.terminal.arguments import COMMON, Arg, Command, Group, InOrder  # noqa: E402
from airflow_provider_dtrain.terminal.definition import commands as all_commands  # noqa: E402

#: Page -> title, text, and names below the package ``airflow_provider_dtrain``.
PYTHON_PAGES = {
    "operators": (
        "Classes of a DAG file",
        "[Operators](../operators.md) explains their behaviour, results and failures.",
        (
            "operators.trial.TrialOperator", "operators.inference.BatchInferenceOperator",
            "operators.diagnose.DiagnoseOperator", "operators.config.RenderConfigOperator",
            "operators.search.PlanTrialsOperator", "operators.search.SelectBestTrialOperator",
            "operators.gang.ReleaseGangOperator", "sensors.gang.GangSensor", "sensors.experiment.ExperimentSensor",
            "task_groups.experiment", "decorators.dtrain.dtrain_task", "decorators.dtrain_batch.dtrain_batch_task",
        ),
    ),
    "training-library": (
        "Names of the training library",
        "They are in `airflow_provider_dtrain.train`. [The training library](../training.md) has programs.",
        (
            "train.init", "train.context.Context", "train.distributed.Distributed", "train.unwrap",
            "train.parameters_sha256", "train.trial.base.PyTorchTrial", "train.trial.context.PyTorchTrialContext",
            "train.trial.callbacks.PyTorchCallback", "train.trial.run.run_trial", "train.trial.run.evaluate_trial",
            "train.trial.dataloader.DataLoader", "train.reports.reducers.MetricReducer",
            "train.inference.processor.BatchProcessor", "train.inference.processor.InferenceContext",
            "train.checkpoint.export.export_weights", "train.checkpoint.weights.load_weights",
        ),
    ),
}  # fmt: skip


def cell(text: object) -> str:
    """Return a text for a cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|")


# -- commands ------------------------------------------------------------------------------------
def commands_page() -> str:
    """Return the page of all commands of both programs."""
    here = dict(_commands(all_commands()))
    laptop = dict(_commands(client_commands()))
    parts = [
        "# Commands\n\n",
        "All commands of `airflow dtrain`, which runs on the machine of Airflow, and of `dtrain`, which needs only ",
        "Python. [Command line](../cli.md) and [From a laptop](../client.md) explain them. Each command accepts ",
        f"{', '.join(f'`{arg.flags[-1]}`' for arg in COMMON)} and `--help`.\n",
    ]
    noun = ""
    for name in sorted({*here, *laptop}):
        command, arguments = here.get(name) or laptop[name]
        if (first := name.partition(" ")[0]) != noun:
            noun = first
            parts.append(f"\n## {noun}\n")
        programs = [program for program, found in (("airflow dtrain", here), ("dtrain", laptop)) if name in found]
        parts.append(
            f"\n### {name}\n\n{command.help.rstrip('.')}. In {' and '.join(f'`{one}`' for one in programs)}.\n"
        )
        if arguments:
            parts.append("\n| argument | meaning |\n|---|---|\n")
            parts += [f"| {_usage(arg)} | {_meaning(arg)} |\n" for arg in arguments]
    return "".join(parts)


def _commands(found: tuple[Group | Command, ...]) -> Iterator[tuple[str, tuple[Command, list[Arg]]]]:
    for one in found:
        members = one.commands if isinstance(one, Group) else (one,)
        if isinstance(one, Group) and len(one.name) <= 3 and "short for" in one.help:
            continue
        for command in members:
            name = f"{one.name} {command.name}" if isinstance(one, Group) else command.name
            yield name, (command, [arg for arg in _arguments(command) if arg not in COMMON])


def _arguments(command: Command) -> Iterator[Arg]:
    for arg in command.args:
        if isinstance(arg, InOrder):
            for _, group in arg.groups:
                yield from group
        else:
            yield arg


def _usage(arg: Arg) -> str:
    value = arg.kwargs.get("metavar")
    if value is None and arg.kwargs.get("choices"):
        value = "\\|".join(map(str, arg.kwargs["choices"]))
    is_option = arg.flags[0].startswith("-")
    if not is_option:
        return f"`{value or arg.flags[0].upper()}`"
    is_flag = (
        arg.kwargs.get("action") in ("store_true", "store_false", "store_const")
        or "action" in arg.kwargs
        and (not isinstance(arg.kwargs["action"], str))
    )
    shown = value or arg.flags[-1].lstrip("-").upper().replace("-", "_")
    return f"`{', '.join(arg.flags)}{'' if is_flag else f' {shown}'}`"


def _meaning(arg: Arg) -> str:
    text = cell((arg.kwargs.get("help") or "").replace("%%", "%"))
    return f"{text} (required)" if arg.kwargs.get("required") else text


# -- configuration -------------------------------------------------------------------------------
def configuration_page() -> str:
    """Return the page of all fields of a configuration."""
    parts = [
        "# Fields of a configuration\n\n",
        "Every field with its type and default, as the models in `core/config` have them. ",
        "[Configuration of an experiment](../configuration.md) explains them with examples.\n",
    ]
    parts += _section("", ExperimentConfig, {})
    return "".join(parts)


def _section(path: str, model: type[BaseModel], seen: Mapping[type[BaseModel], str]) -> Iterator[str]:
    yield f"\n## {path or 'The document'}\n\n"
    if text := inspect.getdoc(model):
        yield f"{cell(text.partition(chr(10) * 2)[0])}\n\n"
    yield "| field | type | default | meaning |\n|---|---|---|---|\n"
    notes = _notes(model)
    below: dict[type[BaseModel], str] = {}
    for name, info in model.model_fields.items():
        field = info.alias or name
        for part in _models(info.annotation):
            below.setdefault(part, f"{path}.{field}".lstrip("."))
        yield f"| `{field}` | {cell(_type(info))} | {_default(info)} | {cell(notes.get(name, ''))} |\n"
    for part, place in below.items():
        if part not in seen:
            yield from _section(place, part, {**seen, part: place})


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def _type(info: FieldInfo) -> str:
    return _shown(info.annotation)


def _shown(annotation: Any) -> str:
    if annotation is type(None):
        return "null"
    if annotation is Any:
        return "anything"
    if isinstance(annotation, type) and not get_args(annotation):
        return "mapping" if issubclass(annotation, BaseModel) else _NAMES.get(annotation.__name__, annotation.__name__)
    origin = getattr(annotation, "__origin__", None)
    parts = get_args(annotation)
    if origin is list:
        return f"list of {_shown(parts[0])}"
    if origin is dict:
        return f"mapping of {_shown(parts[1])}"
    if getattr(origin, "__name__", str(origin)) in ("Literal", "typing.Literal") or str(annotation).startswith(
        "typing.L"
    ):
        return " or ".join(f"`{json.dumps(part) if not isinstance(part, str) else part}`" for part in parts)
    if hasattr(annotation, "__metadata__"):
        return _shown(parts[0])
    if parts:
        return " or ".join(dict.fromkeys(_shown(part) for part in parts))
    return str(annotation).rpartition(".")[2]


_NAMES = {"str": "text", "int": "integer", "float": "number", "bool": "true or false", "Any": "anything"}


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return ""
    if isinstance(value, list) and value and isinstance(value[0], BaseModel):
        return f"{len(value)} entries"
    try:
        return f"`{cell(json.dumps(value))}`"
    except TypeError:
        return f"`{cell(value)}`"


def _notes(model: type[BaseModel]) -> dict[str, str]:
    """Return field -> its comment in the source, which begins with ``#:``. Fields of bases are among them."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not (issubclass(base, BaseModel) and base.__module__.startswith("airflow_provider_dtrain")):
            continue
        source = inspect.cleandoc("\n" + inspect.getsource(base))
        comments = {
            token.start[0]: token.string.removeprefix("#:").strip()
            for token in tokenize.generate_tokens(StringIO(source).readline)
            if token.type == tokenize.COMMENT and token.string.startswith("#:")
        }
        (body,) = ast.parse(source).body
        assert isinstance(body, ast.ClassDef)
        for node in body.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                lines: list[str] = []
                line = node.lineno - 1
                while line in comments:
                    lines.insert(0, comments[line])
                    line -= 1
                found[node.target.id] = " ".join(lines)
    return found


# -- HTTP API ------------------------------------------------------------------------------------
def api_page() -> str:
    """Return the page of all routes of the HTTP API."""
    document = json.loads((ROOT / "ui" / "openapi.json").read_text())
    parts = [
        "# Routes of the HTTP API\n\n",
        f"Version {document['info']['version']}, from the OpenAPI document, which each server has as `openapi.json`. ",
        "[HTTP API](../api.md) explains login, rights, pages of long lists, and errors.\n",
    ]
    by_tag: dict[str, list[tuple[str, str, Any]]] = {}
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            by_tag.setdefault((route.get("tags") or ["other"])[0], []).append((path, method.upper(), route))
    for tag, routes in sorted(by_tag.items()):
        parts.append(f"\n## {tag}\n")
        for path, method, route in routes:
            parts.append(f"\n### {method} {path}\n\n{cell(route.get('description') or route.get('summary') or '')}\n")
            if parameters := route.get("parameters"):
                parts.append("\n| parameter | in | type | meaning |\n|---|---|---|---|\n")
                parts += [
                    f"| `{one['name']}`{' (required)' if one.get('required') else ''} | {one['in']} "
                    f"| {cell(_schema(one['schema']))} | {cell(one.get('description', ''))} |\n"
                    for one in parameters
                ]
            parts.append("\n" + "; ".join(_bodies(route)) + ".\n")
    return "".join(parts)


def _bodies(route: Any) -> Iterator[str]:
    if body := route.get("requestBody"):
        yield "Body: " + ", ".join(_schema(kind.get("schema", {})) for kind in body["content"].values())
    for code, answer in route["responses"].items():
        if code.startswith("2"):
            kinds = [_schema(kind.get("schema", {})) for kind in answer.get("content", {}).values()]
            yield f"answer {code}: {', '.join(filter(None, kinds)) or answer['description']}"
    yield "errors: " + ", ".join(code for code in route["responses"] if not code.startswith("2"))


def _schema(schema: Any) -> str:
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        return " or ".join(filter(None, (_schema(one) for one in schema["anyOf"])))
    if schema.get("enum"):
        return " or ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_schema(schema.get('items', {}))}"
    found = schema.get("format") or schema.get("type") or "any"
    return "" if found == "null" else found


# -- classes ----------------------------------------------------------------------------------
def python_page(name: str) -> str:
    """Return a page that Sphinx fills from docstrings."""
    title, text, names = PYTHON_PAGES[name]
    parts = [f"# {title}\n\n{text}\n"]
    for one in names:
        module, _, member = one.rpartition(".")
        kind = "autoclass" if member[0].isupper() else "autofunction"
        # Airflow alone calls the methods of operators.
        members = "   :members:\n" if kind == "autoclass" and one.startswith("train.") else ""
        parts.append(f"\n```{{eval-rst}}\n.. {kind}:: airflow_provider_dtrain.{module}.{member}\n{members}```\n")
    return "".join(parts)


def pages() -> dict[str, str]:
    """Return all pages, path below docs/ -> text."""
    return {
        "reference/commands.md": commands_page(),
        "reference/configuration.md": configuration_page(),
        "reference/http-api.md": api_page(),
        **{f"reference/{name}.md": python_page(name) for name in PYTHON_PAGES},
    }
