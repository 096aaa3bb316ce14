"""`model.json`: what a run's parameters are parameters of, so that they predict without the data set.

Its numbers are public constants. What a simulation fitted on pooled training records, for each trial, is in a
file of its own that says so: it is simulation only, not private.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from fedsim.common.errors import InputError
from fedsim.common.section import Section
from fedsim.data.prepare import Components, Standard
from fedsim.data.recipe import Fitted, Recipe
from fedsim.data.source import Outline
from fedsim.problems.kinds import Problem
from fedsim.results.outcome import Outcome
from fedsim.results.summary import AGAIN, opened, read_json, validated
from fedsim.scenario.problem import ProblemSection, problem_of

FILE, FITTED = "model.json", "nonprivate_preparation.safetensors"

_PUBLIC_PART = set(ProblemSection.model_fields) - {"name", "model"}
"""What shaped the training and does not matter to predictions."""


class ModelFile(Section):
    """What every trial's parameters have in common."""

    format: Literal[1] = 1
    problem: ProblemSection
    num_features: int
    num_classes: int
    dtype: Literal["float64", "float32"]
    recipe: Recipe | None = None

    def made(self) -> Problem:
        """The problem itself, without its public part.

        Raises:
            InputError: it is of a package that is not installed.
        """
        shape = Outline({}, self.num_features, self.num_classes)
        return problem_of(self.problem, shape, getattr(torch, self.dtype))


Trained = tuple[ModelFile, dict[int, Fitted]]
"""What all trials have in common, and how each prepares records, if that is known."""


def trained(outcome: Outcome) -> Trained:
    """Of a run that has ended."""
    resolved = outcome.resolved
    section = resolved.scenario.problem
    fitted = {k: trial.fitted for k, trial in sorted(outcome.results.trials.items()) if trial.fitted}
    kept = ModelFile(
        problem=ProblemSection(name=section.name, model=section.model),
        num_features=resolved.outline.num_features,
        num_classes=resolved.outline.num_classes,
        dtype=resolved.scenario.runtime.dtype,
        recipe=next((each.recipe for each in fitted.values()), None),
    )
    return kept, fitted


def write_trained(found: Trained, folder: Path) -> None:
    """Write the files into a folder."""
    kept, fitted = found
    text = kept.model_dump_json(indent=2, exclude_none=True, exclude={"problem": _PUBLIC_PART})
    (folder / FILE).write_text(text + "\n", encoding="utf-8")
    arrays = {
        f"trial-{trial}.{name}": np.ascontiguousarray(value)
        for trial, each in fitted.items()
        for part in (each.standard, each.components)
        if part is not None
        for name, value in part._asdict().items()
    }
    if arrays:
        save_file(arrays, folder / FITTED)


def read_trained(directory: Path, trials: Collection[int]) -> Trained:
    """Read them back.

    Raises:
        InputError: a file is missing, damaged or of another version.
    """
    path = directory / FILE
    kept = validated(ModelFile, read_json(path, AGAIN), path, AGAIN)
    if kept.recipe is None:
        return kept, {}
    file = directory / FITTED
    arrays = opened(file, lambda: load_file(file)) if file.exists() else {}
    return kept, {trial: _fitted(kept.recipe, trial, arrays, file) for trial in sorted(trials)}


def _fitted(recipe: Recipe, trial: int, arrays: dict[str, Any], path: Path) -> Fitted:
    def part(kind: Any) -> Any:
        return kind(*(arrays[f"trial-{trial}.{name}"] for name in kind._fields))

    try:
        return Fitted(
            recipe,
            part(Standard) if recipe.scaling == "training_statistics" else None,
            part(Components) if recipe.pca is not None else None,
        )
    except KeyError as error:
        raise InputError("RUN", str(path), f"has no {error}; {AGAIN}") from None
