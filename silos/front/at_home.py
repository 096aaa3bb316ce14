"""A model that a silo's operator makes at home: of a run's model and of the silo's own training records.

No noise is added, so that nothing of it may leave: neither the model, nor its losses, nor whether it is used.
It is written into the silo's state, for its owner alone; the ledger is read, and nothing is written to it or
to the log. What the run's directory says of the federation decides how it is made, and not what leaves.
"""

from __future__ import annotations

import json
import shutil
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError
from torch import Tensor

from fedsim.algorithms.registry import algorithm_class, shipped_names
from fedsim.common.errors import InputError
from fedsim.common.files import atomic_directory
from fedsim.common.identity import Identity
from fedsim.data.recipe import Recipe, declared_recipe
from fedsim.problems.at_home import AtHome, Federation, at_home, linear, unfit
from fedsim.problems.kinds import NAMES, Problem
from fedsim.problems.registry import NETWORKS_AT_HOME, dtype_of
from fedsim.problems.section import problem_of, problem_section
from fedsim.protocol.contract import traits
from fedsim.wire.messages import named
from silos.front.config import ROOT, Config
from silos.front.enrolled import check_enrolment, check_modes
from silos.front.own_model import DAMAGED, MODEL, SUMMARY, copy_run
from silos.front.own_records import OwnRecords, read_records
from silos.vault.book import Book, check_exists, read

MARK = "made of your records without noise: never send it, nor these numbers, nor whether you use it"
_HOME = "nonprivate_model.safetensors"
_APART = ("columns", "target", "predicts", "scaling", "intercept", "record_norm", "transform")


def fit_at_home(config: Config, run: Path) -> tuple[AtHome, bool, Path]:
    """Fit and write the model into the silo's state; the model, whether the silo took part in the run, and
    the directory, which `fedsim predict --nonprivate` takes.

    `run` is a copy of a deployed run's directory, which its server may give to all. InputError names what is
    wrong with it, or with the silo's records; Refused if the ledger is damaged.
    """
    from safetensors.torch import save_file

    run, home = run.resolve(), config.state.resolve() / "at-home"
    if run.is_relative_to(home) or home.is_relative_to(run):
        raise InputError("RUN", str(run), "a folder apart from the silo's state")
    there = _read_run(run)
    check_exists(config.ledger)
    check_modes(config.state)
    book, records, identity = read(config.ledger), read_records(config), Identity.load(config.state)
    check_enrolment(config, book.enrolment, records, identity)
    _check_schema(config, records, there, run)
    rows = records.rows
    if config.holdout is not None:
        rows, _ = records.divided(config.holdout, identity, config.unit)
    x, y = torch.as_tensor(rows.features).double(), torch.as_tensor(rows.target).double()
    owners = None if rows.owners is None else torch.as_tensor(rows.owners)
    if why := unfit(there.problem, y, owners):
        raise InputError(f"{ROOT}.records", config.records.name, f"has no fit at home: {why}")
    weight = _weight(book, run, config.name) if config.name in there.sizes else None
    count = max(sum(there.sizes.values()), len(y)) if weight is None else len(y) / weight
    found = at_home(there.problem, x, y, Federation(there.w, count, there.noise, weight is not None), owners)
    place = home / run.name
    home.mkdir(mode=0o700, exist_ok=True)
    there.summary["privacy"] |= {"mechanism": "none"}
    said = f"the model is silo {config.name}'s, made at home, and not private: {MARK}; all else is the run's"
    with atomic_directory(place) as draft:
        copy_run(run, draft, there.summary, said)
        save_file({"trial-0.nonprivate": found.w}, draft / _HOME)
        for file in (draft, *draft.rglob("*")):
            file.chmod(0o700 if file.is_dir() else 0o600)
        shutil.rmtree(place, ignore_errors=True)
    return found, weight is not None, place


class _Run(NamedTuple):
    """What a run's directory says of its one model."""

    problem: Problem
    w: Tensor  # (d,), finite
    recipe: Any
    shape: tuple[int, int]  # features and classes
    noise: float
    sizes: dict[str, int]  # of the silos that took part; 0 where they are secret
    summary: dict[str, Any]


def _read_run(run: Path) -> _Run:
    """No code of the run's directory, which its server wrote, is run. InputError as `fit_at_home`."""
    from safetensors.torch import load_file

    try:
        (w,) = load_file(run / MODEL).values()
        model, summary = (json.loads((run / f"{name}.json").read_text()) for name in ("model", "summary"))
        sizes = {silo["name"]: int(silo["n"] or 0) for silo in summary["privacy"]["silos"]}
        summary["warnings"], noise = list(summary["warnings"]), summary.get("noise_cost")
        finite = bool(w.isfinite().all()) and (noise is None or 0 <= noise < inf)
        shape = int(model["num_features"]), int(model["num_classes"])
        given, dtype = dict(model["problem"]), dtype_of(model["dtype"])
    except DAMAGED:
        hint = f"a copy of a deployed run's directory, with {MODEL}, model.json and {SUMMARY}"
        raise InputError("RUN", str(run), hint) from None
    if given.get("name") not in NAMES:  # a file's or a plug-in's code would be called with records
        raise InputError("RUN", str(run), f"a model of fedsim's own problems, not {given.get('name')}")
    section = problem_section(given)
    network = section.model and section.model.name
    if network and network not in NETWORKS_AT_HOME:  # code too, once it is built
        raise InputError(
            "RUN", str(run), f"a model of a network {', '.join(NETWORKS_AT_HOME)}, not {network}"
        )
    problem = problem_of(section, *shape, dtype)
    if w.shape != (problem.dimension,) or w.dtype != dtype or not finite:
        made = f"{problem.dimension} finite numbers of {dtype}"
        hint = f"{made} in {MODEL}, as its model.json says, and a finite noise_cost"
        raise InputError("RUN", str(run), hint)
    linear(problem, w.new_zeros(1, shape[0]), w)
    return _Run(problem, w, model.get("recipe"), shape, inf if noise is None else noise, sizes, summary)


def _check_schema(config: Config, records: OwnRecords, there: _Run, run: Path) -> None:
    """InputError where the model takes other features, or columns declared otherwise, than the silo's."""
    own = records.num_features, records.num_classes
    known = declared_recipe(config.records, *own)
    try:
        theirs = None if there.recipe is None else Recipe.model_validate(there.recipe)
    except ValidationError:
        raise InputError("RUN", str(run), "a model.json of this version of fedsim") from None
    differ = [name for name in _APART if known and theirs and getattr(known, name) != getattr(theirs, name)]
    if there.shape != own or differ:
        what = f"{', '.join(differ)} differ" if differ else f"it takes {there.shape}, the silo has {own}"
        hint = f"a model of the silo's own schema, features and classes ({what})"
        raise InputError("RUN", str(run), hint)


def _weight(book: Book, run: Path, name: str) -> float | None:
    """The silo's weight in a run that it answered, as its ledger has it; None where it took no part."""
    paid = {each.offer for each in book.runs.values() if each.rounds}
    if not paid:
        return None
    try:
        offer = (run / "offers" / f"{name}.json").read_text()
        tree = json.loads(offer)
        algorithm, place = tree["algorithm"]["name"], list(tree["shape"]["sizes"]).index(name)
        own = algorithm in shipped_names() and traits(algorithm_class(algorithm)).own
        weight = float(tree["weights"][place])
    except (*DAMAGED, IndexError):
        hint = f"a whole copy of a deployed run's directory: offers/{name}.json is missing or damaged"
        raise InputError("RUN", str(run), hint) from None
    if own:
        hint = f"a run of one model: {algorithm} has silos' own, which `silo model` writes"
        raise InputError("RUN", str(run), hint)
    return weight if named(offer) in paid else None
