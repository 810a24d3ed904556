"""The values of an effective configuration that a user or a template has set."""

from typing import Any

from airflow_provider_dtrain.core.config import assemble
from airflow_provider_dtrain.core.config.leaves import leaves
from airflow_provider_dtrain.core.config.merge import origin_of
from airflow_provider_dtrain.core.config.positions import rendered
from airflow_provider_dtrain.core.config.submitted import set_by

WRITTEN: dict[str, Any] = {
    "name": "mine",
    "labels": ["b"],
    "entrypoint": "python train.py",
    "hyperparameters": {"lr": {"type": "log", "minval": -4, "maxval": -1}, "a.b": 3},
    "resources": {"slots_per_trial": 2},
}
#: Every form of a value: a range, a choice, names with dots, lists, and a period as a number.
FORMS: dict[str, Any] = {
    "entrypoint": ["python", "train.py"],
    "labels": ["one"],
    "hyperparameters": {
        "lr": {"type": "log", "minval": -4, "maxval": -1},
        "bs": {"type": "categorical", "vals": [16, [1, 2], {"a": None}]},
        "net": {"width": {"type": "int", "minval": 1, "maxval": 3}, 'odd."name': {"type": "const", "val": 3}},
        "a.b": {"type": "double", "minval": 0.0, "maxval": 1.0},
    },
    "min_checkpoint_period": 5,
    "environment": {"variables": {"A": "1"}},
    "searcher": {"name": "random", "metric": "loss", "max_trials": 2, "max_length": {"batches": 9}},
}
TEMPLATE: dict[str, Any] = {"labels": ["a"], "scheduling_unit": 7, "resources": {"priority": 9}}


def test_the_values_of_one_origin_are_those_that_were_written() -> None:
    found = assemble(TEMPLATE, WRITTEN)
    own = set_by(found.document, found.origins, {"config"})
    assert own["hyperparameters"].keys() == {"lr", "a.b"}
    assert (own["labels"], own["resources"]) == (["b"], {"slots_per_trial": 2})
    assert own.keys() == WRITTEN.keys()


def test_written_values_and_their_template_complete_to_the_same_configuration() -> None:
    found = assemble(TEMPLATE, WRITTEN, pool_defaults={"max_restarts": 1})
    own = set_by(found.document, found.origins, {"config"})
    assert assemble(TEMPLATE, own, pool_defaults={"max_restarts": 1}).document == found.document
    both = set_by(found.document, found.origins, {"config", "template"})
    assert assemble(None, both, pool_defaults={"max_restarts": 1}).document == found.document
    assert "log_policies" not in both


def test_the_command_and_the_page_name_the_same_origins() -> None:
    found = assemble({"hyperparameters": {"old": {"type": "int", "minval": 1, "maxval": 2}}, "max_restarts": 3}, FORMS)
    page = {line.path: line.origin for line in rendered(found.document, found.origins) if line.origin}
    command = {path: origin_of(path, found.origins) for path, _ in leaves(found.document)}
    assert command == page
    for name in ("lr.minval", "lr.type", "bs.vals.0", "net.width.maxval", '"a.b".minval'):
        assert command[f"hyperparameters.{name}"] == "config"
    assert command["hyperparameters.old.maxval"] == command["max_restarts"] == "template"
    assert command["min_checkpoint_period.batches"] == "config"
    written = set_by(found.document, found.origins, {"config", "template"})
    assert {path for path, origin in command.items() if origin != "default"} == {path for path, _ in leaves(written)}
