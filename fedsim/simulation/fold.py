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

from fedsim.algorithms.registry import shipped
from fedsim.data.federation import Federation
from fedsim.privacy.registry import GAUSSIAN, MECHANISMS
from fedsim.protocol.contract import Algorithm, Public
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.links import Answered
from fedsim.protocol.terms import Admitted
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.host import terms
from fedsim.simulation.memory_ledger import MemoryLedger
from fedsim.simulation.run_digest import shared_digest
from fedsim.simulation.side_by_side import SideBySide
from server.aggregate import coefficients, summed
from server.loop import run
from server.participation import Schedule, admitted_rounds, schedule
from silos.entropy import SeededEntropy
from silos.gate import Gate

FIELDS = ("step_size", "clip_norm")
"""Numbers of an algorithm that may differ between runs of one fold: they never change a plan."""


@dataclass(frozen=True)
class Folded:
    """One run's outcome: its model (d,), and what each silo accepted, in canonical order."""

    model: Tensor
    admitted: list[Admitted]


def fold_key(scenario: Mapping[str, Any]) -> str | None:
    """Equal for scenarios (as mappings) that fold together, in any trial; None where one cannot fold.

    Linear models, as many silos in every round and each answering for itself, noise by the accountant or a
    theorem, and an algorithm of this package, of which it is tested that `FIELDS` do not change the plan. A
    theorem's noise on differences with a clip of their own does depend on the other clip: that stays apart.
    """
    tree = copy.deepcopy(dict(scenario))
    algorithm, privacy = tree["algorithm"], tree["privacy"]
    if (
        tree["problem"]["name"] == "neural_network"
        or tree.get("participation", {}).get("name", "all") not in ("all", "uniform")
        or privacy.get("calibration", "accountant") not in ("accountant", "theorem")
        or MECHANISMS[privacy.get("mechanism", GAUSSIAN.name)].sums_only
        or algorithm.get("parameters", "given") != "given"
        or algorithm["name"] not in shipped()
    ):
        return None
    apart = privacy.get("calibration") == "theorem" and algorithm.get("difference_clip") is not None
    for field in FIELDS:
        if not (apart and field == "clip_norm"):
            algorithm.pop(field, None)
    for field in ("epsilon", "claimed_epsilon"):
        privacy.pop(field, None)
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
    seed, holds = first.scenario.seed, first.trace.holds
    attendance = [schedule(silos, first.active, holds, seed, trial) for trial in trials]
    width = len(attendance[0][0])
    gate = _gate(configs, trials, [admitted_rounds(first.active, own, silos) for own in attendance], width)
    runs = len(configs) * len(trials)
    server = _with_numbers(first.algorithm, configs, len(trials), first.dtype)
    public = replace(first.public(), noise_multipliers=torch.full((silos,), torch.nan, dtype=first.dtype))
    link = _Link(gate, len(configs), attendance, public)
    *_, last = run(server, first.problem, public, seed, link, attendance[0], summed)
    models = last.answer.expand(runs, -1).view(len(configs), len(trials), -1)
    admitted = [gate.admitted[k * silos : (k + 1) * silos] for k in range(runs)]
    return [
        [
            Folded(models[c, t].clone(), [_named(a) for a in admitted[c * len(trials) + t]])
            for t in range(len(trials))
        ]
        for c in range(len(configs))
    ]


def _gate(
    configs: Sequence[Resolved],
    trials: Mapping[int, Federation],
    rounds: Sequence[Sequence[Sequence[int]]],
    width: int,
) -> Gate:
    """All runs' silos as one cohort: config first, then trial, then silo.

    Args:
        rounds: those that each silo is in, of each trial.
        width: how many silos answer in a round of one run.
    """
    first = configs[0]
    pairs = [(s.train_features, s.train_target) for data in trials.values() for s in data.silos]
    entropy = [
        SeededEntropy(first.scenario.seed, trial, first.names, [shared_key(first, own)] * len(first.names))
        for trial, own in trials.items()
    ]
    members = [
        replace(each, name=f"{c}/{trial}/{each.name}")
        for c, config in enumerate(configs)
        for trial, own in zip(trials, rounds, strict=True)
        for each in terms(config, config.names, own, config.mechanism)
    ]
    return Gate(
        SideBySide(pairs, first.problem, first.dtype, len(configs)),
        first.problem,
        _with_numbers(first.algorithm, configs, len(trials) * width, first.dtype),
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
    """The server loop's way to the gate: one broadcast a run, and the run's sum of its silos' messages."""

    def __init__(self, gate: Gate, configs: int, attendance: Sequence[Schedule], public: Public) -> None:
        """`attendance`: of each trial, as many silos a round in every one."""
        self._gate, self._configs, self._attendance, self._public = gate, configs, attendance, public

    def answer(self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int]) -> Answered:
        """Messages {name: (1, runs, d)}, weighed and added, for broadcasts (d,) or (runs, d).

        Args:
            members: those of the first trial.
        """
        silos, width = len(self._public.names), len(members)
        sent = {
            name: value if value.dim() == 1 else value.repeat_interleave(width, 0)
            for name, value in broadcast.items()
        }
        there = [own[round_index] for own in self._attendance] * self._configs
        cohort = [run * silos + silo for run, own in enumerate(there) for silo in own]
        reply = self._gate.answer(round_index, sent, None if width == silos else cohort)
        weights = torch.stack([self._weights(own[round_index]) for own in self._attendance])
        each = weights.repeat(self._configs, 1).unsqueeze(1)  # (runs, 1, width)
        messages = {
            name: each.to(rows.dtype) @ rows.view(len(there), width, -1) for name, rows in reply.items()
        }
        return Answered(members, {name: rows.transpose(0, 1) for name, rows in messages.items()})

    def _weights(self, members: Sequence[int]) -> Tensor:
        return coefficients(self._public.weights, members, len(self._public.names))
