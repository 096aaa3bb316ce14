"""`fedsim export`: a model for another library."""

from __future__ import annotations

from pathlib import Path

import typer

from fedsim.api.run import load_run
from fedsim.cli.new_file import new_file
from fedsim.cli.tables import shown
from fedsim.results.predictor import Predictor

_SUFFIXES = {"sklearn": (".joblib",), "torch": (".safetensors", ".pt")}
_UNSAFE = "Loading it runs code that is in it: load only what you, or somebody you trust, have written."


def run(directory: Path, to: str, out: Path, trial: int | None, nonprivate: bool) -> None:
    """Write a run's model into a new file.

    Raises:
        InputError: there is no such model, it has no form in that library, or the file cannot be written.
    """
    with new_file(out, _SUFFIXES[to]) as draft:
        model = load_run(directory).predictor(trial, nonprivate=nonprivate)
        _to_sklearn(model, draft) if to == "sklearn" else _to_torch(model, draft)
    typer.echo(f"Wrote {shown(out)}")
    if to == "sklearn":
        typer.echo(_UNSAFE)


def _to_sklearn(model: Predictor, place: Path) -> None:
    import joblib

    joblib.dump(model.to_sklearn(), place)


def _to_torch(model: Predictor, place: Path) -> None:
    import torch
    from safetensors.torch import save_file

    state = {name: value.clone().contiguous() for name, value in model.to_torch().state_dict().items()}
    torch.save(state, place) if place.suffix == ".pt" else save_file(state, place)
