"""Writes ui/openapi.json from the API: `python scripts/tools/openapi.py [--check]`.

The pages' TypeScript types are generated from this file.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).resolve().parents[2] / "ui" / "openapi.json"


def document() -> dict[str, Any]:
    """Return the OpenAPI document of the API. Imports Airflow."""
    from airflow_provider_dtrain.api.app import create_app

    found = create_app().openapi()
    # Answers of routes that are not served yet: the pages are written at the same time.
    schemas = found["components"]["schemas"]
    for name, schema in _all_models().items():
        schemas.setdefault(name, schema)
    found["components"]["schemas"] = dict(sorted(schemas.items()))
    return found


def _all_models() -> dict[str, Any]:
    """Return the schemas of all models in ``api/models``."""
    from pydantic import BaseModel
    from pydantic.json_schema import models_json_schema

    from airflow_provider_dtrain.api import models
    from airflow_provider_dtrain.api.models.common import Model

    found: list[tuple[type[BaseModel], Any]] = []
    for info in pkgutil.iter_modules(models.__path__):
        module = importlib.import_module(f"{models.__name__}.{info.name}")
        own = [one for one in vars(module).values() if getattr(one, "__module__", "") == module.__name__]
        found += [(one, "serialization") for one in own if issubclass(one, BaseModel) and one is not Model]
    schemas = models_json_schema(found, ref_template="#/components/schemas/{model}")[1]
    return dict(schemas["$defs"])


def text() -> str:
    """Return the content of the file."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Write the document. With --check, only return 1 when it is out of date."""
    parser = argparse.ArgumentParser(description="Writes the OpenAPI document of the API.")
    parser.add_argument("--check", action="store_true", help="only exit with 1 if it is out of date")
    if parser.parse_args().check:
        return int(not DOCUMENT.is_file() or DOCUMENT.read_text() != text())
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(text())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
