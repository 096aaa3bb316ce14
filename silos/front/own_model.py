"""A silo's own model, for its operator: the run's model plus the own part that the silo's ledger kept.

The own part v_i is in no message. It is made of noisy answers, which the server has too, and could compute it
from: the run's guarantee covers it. How well it does on the silo's records is made of these records.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from fedsim.algorithms.registry import algorithm_class, shipped_names
from fedsim.common.chain import reading
from fedsim.common.errors import InputError
from fedsim.common.files import atomic_directory, check_free
from fedsim.protocol.contract import traits
from fedsim.wire.messages import named
from silos.front.config import Config
from silos.vault.book import LEDGER, check_exists, replayed
from silos.vault.ledger import Reply, unpacked

MODEL, SUMMARY = "model.safetensors", "summary.json"
DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, SafetensorError)
"""What reading an odd file of a run raises."""
_OTHERS = shutil.ignore_patterns("report.html", "figures", "receipts", "offers", "*.safetensors")


def write_own_model(config: Config, run: Path, out: Path) -> None:
    """Write a deployed run's directory, as its server wrote it, with the silo's own model in place of the
    run's to a new one, which `fedsim predict` takes as it takes the run's. The silo's daemon may be running.
    InputError if the directory is of no run that this silo answered, or its algorithm has no own models;
    Refused if the ledger cannot be read, was altered or is damaged.
    """
    from safetensors.torch import load_file, save_file

    place, name = check_free(out), config.name
    try:
        offer = (run / "offers" / f"{name}.json").read_text()
        models, summary = load_file(run / MODEL), json.loads((run / SUMMARY).read_text())
        algorithm = json.loads(offer)["algorithm"]["name"]
        summary["warnings"] = list(summary["warnings"])
    except DAMAGED:
        hint = f"the directory of a deployed run of silo {name}, with {MODEL}, {SUMMARY} and its offers"
        raise InputError("RUN", str(run), hint) from None
    own = traits(algorithm_class(algorithm)).own if algorithm in shipped_names() else None
    if own is None:
        raise InputError("RUN", str(run), f"a run with own models: algorithm {algorithm} has none")
    part = _kept(config.ledger, named(offer), run)[own]
    said = f"the model is silo {name}'s own; all numbers are of the run's model, without the own part"
    with atomic_directory(place) as draft:
        copy_run(run, draft, summary, said)
        save_file({trial: model + part for trial, model in models.items()}, draft / MODEL)


def copy_run(run: Path, draft: Path, summary: dict[str, Any], said: str) -> None:
    """Copy what is of a run and not of its model; the first warning of its summary is what is `said`."""
    shutil.copytree(run, draft, ignore=_OTHERS, dirs_exist_ok=True)
    summary |= {"warnings": [said, *summary["warnings"]]}
    (draft / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")


def _kept(ledger: Path, offer: str, run: Path) -> Reply:
    """What the silo remembers of the run of an offer; the whole ledger is checked."""
    check_exists(ledger)
    with reading(ledger, LEDGER) as connection:
        found = [each.run for each in replayed(connection).runs.values() if each.offer == offer]
        sql = "SELECT memory FROM replies WHERE run = ?"
        row = connection.execute(sql, found).fetchone() if found else None
    if row is None:
        raise InputError("RUN", str(run), "of a run that this silo has answered; its ledger has none")
    return unpacked(row[0])
