"""Read a run directory back, refusing one that is half there or of another version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from fedsim.common.errors import InputError
from fedsim.common.yaml_file import value
from fedsim.results.audit_file import read_audit
from fedsim.results.collected import Models, Run, without_seed
from fedsim.results.model_file import FITTED, Trained, read_trained
from fedsim.results.place import UNFINISHED
from fedsim.results.summary import AGAIN, FILE, MEASURED, read_summary
from fedsim.scenario.metric import BY_SKLEARN

_COLUMNS = {
    "metrics": ("trial", "variant", "round", *MEASURED),
    "silos": ("trial", "variant", "silo", "error", "loss", *BY_SKLEARN),
    "baselines": ("trial", "baseline", "silo", "error", "loss", *BY_SKLEARN),
    "calibration": ("trial", "variant", "bin", "records", "predicted", "observed"),
    "ledger": ("trial", "silo", "round", "releases"),
    "clipping": ("trial", "round", "terms", "clipped", "median_norm"),
    "spend": ("silo", "round", "epsilon_spent", "budget"),
}
"""Without which a table is not one of a run's."""


def read(directory: Path) -> Run:
    """Read a run's results; no data set, no Ray, and models only once they are asked for.

    Raises:
        InputError: names the file that is missing, damaged, or of another version.
    """
    if not directory.is_dir():
        raise InputError("RUN", str(directory), f"no such directory; {AGAIN}")
    if (directory / UNFINISHED).is_dir() and not (directory / FILE).exists():
        expected = f"the run has not ended; fedsim simulate --resume {directory} goes on with it"
        raise InputError("RUN", str(directory), expected)
    summary = read_summary(directory)
    scenario, description = scenario_of(directory / "scenario.yaml")
    tables = (_table(directory, name) for name in _COLUMNS)
    metrics, silos, baselines, calibration, ledger, clipping, spend = tables
    return Run(
        summary,
        scenario,
        description,
        metrics,
        silos,
        baselines,
        calibration,
        ledger,
        clipping,
        lambda: spend,
        lambda: _models(directory),
        lambda: _trained(directory),
        directory,
        read_audit(directory),
    )


def scenario_of(path: Path) -> tuple[str, str]:
    """A scenario file's text without its seed, and its description; InputError if damaged or missing."""
    try:
        tree = value(_opened(path, lambda: path.read_text(encoding="utf-8")))
    except yaml.YAMLError:
        tree = None
    if not isinstance(tree, dict):
        raise InputError("RUN", str(path), f"not a scenario, cut short?; {AGAIN}")
    return without_seed(tree), str(tree.get("description", ""))


def _table(directory: Path, name: str) -> pa.Table:
    path = directory / f"{name}.parquet"
    table = _opened(path, lambda: pq.read_table(path))
    missing = [column for column in _COLUMNS[name] if column not in table.column_names]
    if missing:
        raise InputError("RUN", str(path), f"has no column {missing[0]!r}; {AGAIN}")
    return table


def _models(directory: Path) -> Models:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    found: Models = {}
    for path in sorted(set(directory.glob("*.safetensors")) - {directory / FITTED}):
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError):
            raise InputError("RUN", str(path), f"is damaged, cut short?; {AGAIN}") from None
        for key, tensor in tensors.items():
            trial, variant = key.removeprefix("trial-").split(".")
            found.setdefault(variant, {})[int(trial)] = tensor
    return {variant: dict(sorted(trials.items())) for variant, trials in found.items()}


def _trained(directory: Path) -> Trained:
    return read_trained(directory, {trial for models in _models(directory).values() for trial in models})


def _opened(path: Path, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except FileNotFoundError:
        raise InputError("RUN", str(path), f"is missing; {AGAIN}") from None
    except (pa.ArrowException, UnicodeDecodeError):
        raise InputError("RUN", str(path), f"is damaged, cut short?; {AGAIN}") from None
    except OSError as error:
        reason = error.strerror or "damaged"
        raise InputError("RUN", str(path), f"cannot be read ({reason}); {AGAIN}") from None
