"""Follow a run in MLflow: wherever `MLFLOW_TRACKING_URI` says, in the experiment `fedsim`."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from fedsim.report.trackers import installed

_EXPERIMENT = "fedsim"
_MOST = 500  # metrics in a request; a server takes up to 1,000


class MLflow:
    """A tracker (`fedsim.report.trackers`); needs the extra `mlflow`."""

    def __init__(self, simulation: bool) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # before the import: nothing else leaves
        self._mlflow = installed("mlflow", "mlflow")
        self._client = self._mlflow.MlflowClient()

    def start(self, run: Mapping[str, Any]) -> None:
        """Open a run in the experiment, with the scenario as an artefact."""
        existing = self._client.get_experiment_by_name(_EXPERIMENT)
        experiment = existing.experiment_id if existing else self._client.create_experiment(_EXPERIMENT)
        self._run = self._client.create_run(experiment, run_name=run["name"]).info.run_id
        self._client.log_dict(self._run, dict(run["scenario"]), "scenario.yaml")

    def log(self, round_index: int, values: Mapping[str, float]) -> None:
        """Log each number as a metric; letters that MLflow takes in no name become underscores."""
        when, metric = (int(time.time() * 1000), round_index), self._mlflow.entities.Metric
        metrics = [metric(re.sub(r"[^\w\-./ ]", "_", name), value, *when) for name, value in values.items()]
        for start in range(0, len(metrics), _MOST):
            self._client.log_batch(self._run, metrics=metrics[start : start + _MOST])

    def finish(self) -> None:
        """Close the run."""
        self._client.set_terminated(self._run)
