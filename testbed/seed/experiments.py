"""Configurations, searches and submissions of a simulated run, planned by the code of the package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_dtrain.core.config import ExperimentConfig, assemble, take_secrets
from airflow_provider_dtrain.core.hyperparameters.seeds import trial_seed
from airflow_provider_dtrain.core.hyperparameters.space import sample
from airflow_provider_dtrain.core.projects import DEFAULT_PROJECT
from airflow_provider_dtrain.core.search.plan import TrialSpec, outline, plan
from airflow_provider_dtrain.engine.submission.submit import put_code
from airflow_provider_dtrain.store.records.searches import SearchSubmission
from airflow_provider_dtrain.store.records.trials import TrialKey, TrialSubmission
from airflow_provider_dtrain.store.store import Store

#: Code that the trials claim to run, so that an experiment can be forked.
CODE = Path(__file__).parents[2] / "dags" / "digits"
#: Experiments with other code.
OTHER_CODE = {"mnist-grid": CODE.parent / "torchrun_script"}
SEED = 17

#: Experiment -> owner and project. The user ``admin`` owns none, and so sees all experiments first.
PLACES = {
    "cifar10-asha": ("op", "vision"),
    "resnet-asha": ("op", "vision"),
    "mnist-grid": ("op", "vision/teaching"),
    "gpt2-finetune": ("user", "language"),
    "bert-distill": ("user", "language"),
    "llama-pretrain": ("ann.lee@example.com", "language"),
}
#: Owner that Airflow gives to tasks whose DAG names none, of a scheduled run.
PLACE = ("airflow", DEFAULT_PROJECT)

#: The code of all trials is of one commit, in a bundle of this version.
COMMIT = "9f2c41d07ab35e68d1c4f0937be52a86c7d3e510"
SOURCE = {
    "git": {"commit": COMMIT, "is_clean": True, "problem": ""},
    "bundle": {"name": "experiments", "version": COMMIT},
}


class Planned:
    """An experiment of a DAG run: its stored configuration, and the submissions of its trials.

    :param key: of the task that runs its only trial, or that plans its trials; the trials of a search are instances
        of the mapped task ``trial`` beside it
    :param document: configuration as a user writes it
    """

    def __init__(self, store: Store, key: TrialKey, document: Mapping[str, Any]) -> None:
        self.store = store
        self.key = key
        effective = assemble(self._template(document), document)
        public, _ = take_secrets(effective.document)
        public["reproducibility"]["experiment_seed"] = SEED
        template = document.get("template")
        version = store.templates.get(template).version if template else None
        self.stored = store.configs.put(public, origins=effective.origins, template=template, template_version=version)
        self.config: ExperimentConfig = effective.config
        self.name = str(document["name"])
        self.owner, self.project = PLACES.get(self.name, PLACE)
        self.payload = put_code(store, OTHER_CODE.get(self.name, CODE), print, print)
        self.search_id: int | None = None
        self.specs: list[TrialSpec] = []
        if self.config.searcher.name != "single":
            self._plan()

    def _template(self, document: Mapping[str, Any]) -> Mapping[str, Any] | None:
        name = document.get("template")
        return yaml.safe_load(self.store.templates.get(name).text) if name else None

    def _plan(self) -> None:
        searcher, shape = self.config.searcher, outline(self.config)
        view = self.store.searches.create(
            SearchSubmission(
                key=self.key,
                experiment_name=self.name,
                config_id=self.stored.config_id,
                method=searcher.name,
                metric=searcher.metric,
                smaller_is_better=searcher.smaller_is_better,
                divisor=shape.divisor or 4,
                seed=SEED,
                is_seed_given=True,
                rungs={index: rungs for index, (rungs, _) in enumerate(shape.brackets) if rungs},
                max_trials=shape.trials,
                max_concurrent_trials=shape.max_concurrent or 0,
                weight=self.config.resources.weight,
                max_slots=self.config.resources.max_slots,
                owner=self.owner,
                project=self.project,
            )
        )
        self.search_id = view.search_id
        self.specs = plan(self.config, SEED)

    def submission(self, number: int = 0, **fields: Any) -> TrialSubmission:
        """Return the submission of a trial.

        :param fields: replace those that follow from the configuration
        """
        resources = self.config.resources
        spec = self.specs[number] if self.specs else None
        task = self.key.task_id if spec is None else self.key.task_id.replace("plan", "trial")
        key = TrialKey(
            dag_id=self.key.dag_id, run_id=self.key.run_id, task_id=task, map_index=-1 if spec is None else number
        )
        hparams = sample(self.config.hyperparameters, experiment_seed=SEED, trial=number)
        values: dict[str, Any] = {
            "key": key,
            "experiment_name": self.name,
            "config_id": self.stored.config_id,
            "payload": self.payload,
            "source": SOURCE,
            "pool": resources.pool,
            "slots": resources.slots_per_trial,
            "priority": resources.priority,
            "is_single_host": resources.is_single_host,
            "number": number,
            "hparams": hparams if spec is None else spec["hyperparameters"],
            "seed": trial_seed(SEED, number),
            "search_id": self.search_id,
            "bracket": 0 if spec is None else spec["bracket"],
            "max_restarts": self.config.max_restarts,
            "on_unplaceable": self.config.on_unplaceable,
            "weight": resources.weight,
            "max_slots": resources.max_slots,
            "owner": self.owner,
            "project": self.project,
            "preemptible": self.config.preemptible,
        }
        return TrialSubmission(**{**values, **fields})
