"""The values of an effective configuration that a user or a template has set."""

from typing import Any

from airflow_provider_dtrain.core.config import assemble
from airflow_provider_dtrain.core.config.submitted import set_by

WRITTEN: dict[str, Any] = {
    "name": "mine",
    "labels": ["b"],
    "entrypoint": "python train.py",
    "hyperparameters": {"lr": {"type": "log", "minval": -4, "maxval": -1}, "a.b": 3},
    "resources": {"slots_per_trial": 2},
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
