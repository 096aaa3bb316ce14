"""Several runs as one: those that differ in step size, clip norm, epsilon and trial only.

A run is one more leading axis: of the server half's vectors, (runs, d), and of the cohort, whose members
are (run, silo). Everything that a run is priced, noised and recorded by stays its own, but for the bits of
its noise and batches: runs of one trial share them (`shared_key`). So they carry no guarantee together. Run
alone with the same key, a run has the same bits, and the same model up to rounding.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedsim.algorithms.registry import algorithms
from fedsim.data.federation import Federation
from fedsim.mechanisms.registry import GAUSSIAN, MECHANISMS
from fedsim.protocol.contract import Algorithm
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.links import Answered
from fedsim.protocol.terms import Admitted
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.host import terms
from fedsim.simulation.memory_ledger import MemoryLedger
from fedsim.simulation.run_digest import shared_digest
from fedsim.simulation.side_by_side import SideBySide
from server.aggregate import weighted
from server.loop import run
from server.participation import schedule
from silos.gate import Gate
from silos.seeded_entropy import SeededEntropy

FIELDS = ("step_size", "clip_norm")
"""Numbers of an algorithm that may differ between runs of one fold: they never change a plan."""


@dataclass(frozen=True)
class Folded:
    """One run's outcome: its model (d,), and what each silo accepted, in canonical order."""

    model: Tensor
    admitted: list[Admitted]


def fold_key(scenario: Mapping[str, Any]) -> str | None:
    """Equal for scenarios (as mappings) that fold together, in any trial; None where one cannot fold.

    Linear models, all silos in every round and each answering for itself, noise by the accountant, and an
    algorithm of this package, of which it is tested that `FIELDS` do not change the plan.
    """
    tree = copy.deepcopy(dict(scenario))
    algorithm, privacy = tree["algorithm"], tree["privacy"]
    if (
        tree["problem"]["name"] == "neural_network"
        or tree.get("participation", {}).get("name", "all") != "all"
        or privacy.get("calibration", "accountant") != "accountant"
        or MECHANISMS[privacy.get("mechanism", GAUSSIAN.name)].sums_only
        or algorithm.get("parameters", "given") != "given"
        or not algorithms()[algorithm["name"]].__module__.startswith("fedsim.algorithms.")
    ):
        return None
    for field in FIELDS:
        algorithm.pop(field, None)
    privacy.pop("epsilon", None)
    return json.dumps(tree, sort_keys=True, default=str)


def shared_key(resolved: Resolved, data: Federation) -> str:
    """What keys the noise of every run of one `fold_key` on these records: all that they have in common."""
    return shared_digest(resolved, data.digest, FIELDS)


def run_fold(configs: Sequence[Resolved], trials: Mapping[int, Federation]) -> list[list[Folded]]:
    """Run every config in every trial, all at once.

    Args:
        configs: resolved scenarios of one `fold_key`.
        trials: each trial's records.

    Returns:
        For each config its outcomes in the order of `trials`.

    Raises:
        Refused: some run was refused; nothing is known of the others.
    """
    first, silos = configs[0], len(configs[0].names)
    rounds = schedule(silos, None, first.trace.holds, first.scenario.seed, 0)
    gate = _gate(configs, trials, range(len(rounds)))
    runs = len(configs) * len(trials)
    server = _with_numbers(first.algorithm, configs, len(trials), first.dtype)
    public = replace(first.public(), noise_multipliers=torch.full((silos,), torch.nan, dtype=first.dtype))
    link = _Link(gate, runs, silos)
    *_, last = run(server, first.problem, public, first.scenario.seed, link, rounds, weighted)
    models = last.answer.expand(runs, -1).view(len(configs), len(trials), -1)
    admitted = [gate.admitted[k * silos : (k + 1) * silos] for k in range(runs)]
    return [
        [
            Folded(models[c, t].clone(), [_named(a) for a in admitted[c * len(trials) + t]])
            for t in range(len(trials))
        ]
        for c in range(len(configs))
    ]


def _gate(configs: Sequence[Resolved], trials: Mapping[int, Federation], rounds: Sequence[int]) -> Gate:
    """All runs' silos as one cohort: config first, then trial, then silo."""
    first = configs[0]
    everyone = [rounds] * len(first.names)
    pairs = [(s.train_features, s.train_target) for data in trials.values() for s in data.silos]
    entropy = [
        SeededEntropy(first.scenario.seed, trial, first.names, [shared_key(first, own)] * len(first.names))
        for trial, own in trials.items()
    ]
    members = [
        replace(each, name=f"{c}/{trial}/{each.name}")
        for c, config in enumerate(configs)
        for trial in trials
        for each in terms(config, config.names, everyone, config.mechanism)
    ]
    return Gate(
        SideBySide(pairs, first.problem, first.dtype, len(configs)),
        first.problem,
        _with_numbers(first.algorithm, configs, len(trials) * len(first.names), first.dtype),
        first.trace.plan,
        members,
        first.mechanism,
        SeededEntropy.joined(entropy),
        [MemoryLedger() for _ in members],
        LIMITS,
        first.dtype,
    )


def _with_numbers(
    algorithm: Algorithm, configs: Sequence[Resolved], repeats: int, dtype: torch.dtype
) -> Algorithm:
    """The algorithm with a column of numbers for each field that differs, (configs x repeats, 1).

    Each config has been checked with its own numbers, which a column could not be.
    """
    folded = copy.copy(algorithm)
    for field in FIELDS:
        values = [getattr(config.algorithm, field, None) for config in configs]
        if len(set(values)) > 1:
            column = torch.tensor(values, dtype=dtype).repeat_interleave(repeats).unsqueeze(1)
            object.__setattr__(folded, field, column)
    return folded


def _named(admitted: Admitted) -> Admitted:
    """With the silo's own name."""
    _, _, name = admitted.terms.name.split("/", 2)
    return replace(admitted, terms=replace(admitted.terms, name=name))


class _Link:
    """The server loop's way to the gate: one broadcast a run, one message a run and silo."""

    def __init__(self, gate: Gate, runs: int, silos: int) -> None:
        self._gate, self._runs, self._silos = gate, runs, silos

    def answer(self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int]) -> Answered:
        """Messages {name: (runs, silos, d)}, for broadcasts (d,) or (runs, d)."""
        sent = {
            name: value if value.dim() == 1 else value.repeat_interleave(self._silos, 0)
            for name, value in broadcast.items()
        }
        reply = self._gate.answer(round_index, sent)
        shape = self._runs, self._silos, -1
        return Answered(members, {name: rows.view(shape) for name, rows in reply.items()})
