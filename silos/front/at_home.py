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
from typing import Any

import torch
from pydantic import ValidationError

from fedsim.algorithms.registry import algorithm_class, shipped_names
from fedsim.common.errors import InputError
from fedsim.common.files import atomic_directory
from fedsim.common.identity import Identity
from fedsim.data.recipe import Recipe, declared_recipe
from fedsim.problems.at_home import AtHome, Federation, at_home, linear, unfit
from fedsim.problems.registry import dtype_of, problems
from fedsim.problems.section import problem_of, problem_section
from fedsim.protocol.contract import traits
from fedsim.wire.messages import named
from silos.front.config import ROOT, Config
from silos.front.enrolled import check_enrolment, check_modes
from silos.front.own_records import OwnRecords, read_records
from silos.vault.book import Book, check_exists, read

MARK = "made of your records without noise: never send it, nor these numbers, nor whether you use it"
_MODEL, _HOME = "model.safetensors", "nonprivate_model.safetensors"
_LEFT = shutil.ignore_patterns(_MODEL, "report.html", "figures", "receipts", "offers", "*.safetensors")
_APART = ("columns", "target", "predicts", "scaling", "intercept", "record_norm", "transform")


def fit_at_home(config: Config, run: Path) -> tuple[AtHome, bool, Path]:
    """Fit and write the model into the silo's state; the model, whether the silo took part in the run, and
    the directory, which `fedsim predict --nonprivate` takes.

    `run` is a copy of a deployed run's directory, which its server may give to all. InputError names what is
    wrong with it, or with the silo's records; Refused if the ledger is damaged.
    """
    from safetensors.torch import load_file, save_file

    try:
        (w,) = load_file(run / _MODEL).values()
        model, summary = (json.loads((run / f"{name}.json").read_text()) for name in ("model", "summary"))
        sizes = [silo["n"] for silo in summary["privacy"]["silos"]]
        noise, recipe = summary.get("noise_cost"), model.get("recipe")
        shape = int(model["num_features"]), int(model["num_classes"])
        section, dtype = dict(model["problem"]), dtype_of(model["dtype"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        hint = f"a copy of a deployed run's directory, with {_MODEL}, model.json and summary.json"
        raise InputError("RUN", str(run), hint) from None
    if section.get("name") not in problems():  # a file's or a plug-in's code would be called with records
        raise InputError("RUN", str(run), f"a model of fedsim's own problems, not {section.get('name')}")
    problem = problem_of(problem_section(section), *shape, dtype)
    if len(w) != problem.dimension:
        raise InputError("RUN", str(run), f"{_MODEL} of {problem.dimension} numbers, as its model.json says")
    linear(problem, w.new_zeros(1, shape[0]), w)
    check_exists(config.ledger)
    check_modes(config.state)
    book, records, identity = read(config.ledger), read_records(config), Identity.load(config.state)
    check_enrolment(config, book.enrolment, records, identity)
    _check_schema(config, records, shape, recipe, run)
    rows = records.rows
    if config.holdout is not None:
        rows, _ = records.divided(config.holdout, identity, config.unit)
    x, y = torch.as_tensor(rows.features).double(), torch.as_tensor(rows.target).double()
    owners = None if rows.owners is None else torch.as_tensor(rows.owners)
    if why := unfit(problem, y, owners):
        raise InputError(f"{ROOT}.records", config.records.name, f"has no fit at home: {why}")
    weight = _weight(book, run, config.name)
    count = sum(size or 0 for size in sizes) if weight is None else len(y) / weight
    public = Federation(w, max(count, len(y)), inf if noise is None else float(noise), weight is not None)
    found = at_home(problem, x, y, public, owners)
    place = config.state / "at-home" / run.resolve().name
    place.parent.mkdir(mode=0o700, exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    with atomic_directory(place) as draft:
        shutil.copytree(run, draft, ignore=_LEFT, dirs_exist_ok=True)
        save_file({"trial-0.nonprivate": found.w}, draft / _HOME)
        said = (
            f"the model is silo {config.name}'s, made at home, and not private: {MARK}; all else is the run's"
        )
        privacy = summary["privacy"] | {"mechanism": "none"}
        summary |= {"warnings": [said, *summary["warnings"]], "privacy": privacy}
        (draft / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        for file in (draft, *draft.rglob("*")):
            file.chmod(0o700 if file.is_dir() else 0o600)
    return found, weight is not None, place


def _check_schema(
    config: Config, records: OwnRecords, shape: tuple[int, int], recipe: Any, run: Path
) -> None:
    """InputError where the model takes other features, or columns declared otherwise, than the silo's."""
    own = records.num_features, records.num_classes
    known = declared_recipe(config.records, *own)
    try:
        theirs = None if recipe is None else Recipe.model_validate(recipe)
    except ValidationError:
        raise InputError("RUN", str(run), "a model.json of this version of fedsim") from None
    differ = [name for name in _APART if known and theirs and getattr(known, name) != getattr(theirs, name)]
    if shape != own or differ:
        what = f"{', '.join(differ)} differ" if differ else f"it takes {shape}, the silo has {own}"
        hint = f"a model of the silo's own schema, features and classes ({what})"
        raise InputError("RUN", str(run), hint)


def _weight(book: Book, run: Path, name: str) -> float | None:
    """The silo's weight in a run that it answered, as its ledger has it; None where it took no part."""
    try:
        offer = (run / "offers" / f"{name}.json").read_text()
        paid = [each for each in book.runs.values() if each.offer == named(offer) and each.rounds]
        tree = json.loads(offer)
        algorithm, place = tree["algorithm"]["name"], list(tree["shape"]["sizes"]).index(name)
        own = algorithm in shipped_names() and traits(algorithm_class(algorithm)).own
        weight = float(tree["weights"][place])
    except OSError:
        return None
    except (ValueError, KeyError, TypeError, IndexError):
        raise InputError(
            "RUN", str(run), f"a deployed run's directory: offers/{name}.json is damaged"
        ) from None
    if own:
        hint = f"a run of one model: {algorithm} has silos' own, which `silo model` writes"
        raise InputError("RUN", str(run), hint)
    return weight if paid else None
