"""Several runs as one: those that differ in step size, clip norm, epsilon and trial only.

A run is one more leading axis: of the server method's vectors, (runs, d), and of the cohort, whose members
are (run, silo). Everything that a run is priced, noised and recorded by stays its own, but for the bits of
its noise and batches: runs of one trial share them (`shared_key`). So they carry no guarantee together. Run
alone with the same key, a run has the same bits, and the same model up to rounding.

Runs on the same records share them too: the records are read once, and a run is one more column of the matrix
products. Every record's term is clipped run by run as in `silos.statistics`, with the same guarantee.
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
from fedsim.algorithms.section import AUTO
from fedsim.common.errors import Refused
from fedsim.data.federation import Federation
from fedsim.privacy.registry import GAUSSIAN, MECHANISMS
from fedsim.problems import exact
from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.kinds import Problem, check, coefficient
from fedsim.protocol.clashes import clashes
from fedsim.protocol.contract import Algorithm, Public, traits
from fedsim.protocol.facts import Facts, Told
from fedsim.protocol.limits import LIMITS
from fedsim.protocol.links import Answered
from fedsim.protocol.plan import Admitted
from fedsim.protocol.rows import Rows
from fedsim.scenario.resolve import Resolved
from fedsim.simulation.host import MemoryLedger, terms
from fedsim.simulation.run_digest import shared_digest
from server.aggregate import coefficients, summed
from server.loop import run
from server.participation import Schedule, admitted_rounds, schedule
from silos.front.served import Served
from silos.vault.entropy import SeededEntropy
from silos.vault.gate import Gate
from silos.vault.owners import ALONE, Owners
from silos.vault.records import Records, RowsOfBlock, clipped_sum
from silos.vault.sums import KEPT, Block, bounded, weighted_sum


def shared_sum(
    problem: Problem, block: Block, points: Sequence[Tensor], clip: float | Tensor | None
) -> Tensor:
    """Arguments and result as `silos.vault.records.clipped_sum`, (members, d) in float64, for a block that
    several runs share: its `members` are the silos of the first run, those of the second, and so on. Points
    are (d,) or (members, d), the clip a number or (members, 1).
    """
    silos, rows = block.target.shape
    copies = len(block.members) // silos
    if copies == 1:
        return clipped_sum(problem, block, points, clip)
    assert isinstance(problem, GeneralisedLinear)
    coefficient = _coefficient(problem, block, points[0])  # (silos, rows, copies[, outputs])
    for other in points[1:]:
        coefficient = coefficient - _coefficient(problem, block, other)
    bound = None
    if clip is not None:  # one number a run broadcasts against (silos, rows, copies)
        by_run = clip.view(copies, -1).T.unsqueeze(1) if isinstance(clip, Tensor) and clip.dim() > 1 else clip
        bound = by_run * KEPT[coefficient.dtype] * block.inverse_norm.unsqueeze(-1)
    coefficient = bounded(coefficient, bound, block.mask)
    if rows == 1 and coefficient.dim() == 3:  # one product a number: nothing is added up
        own = torch.empty(copies, silos, problem.dimension, dtype=block.features.dtype)
        coefficient = coefficient.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        torch.mul(coefficient.permute(2, 0, 1), block.features.squeeze(1), out=own)
        return own.view(len(block.members), problem.dimension).double()
    total = weighted_sum(coefficient.reshape(silos, rows, -1).transpose(1, 2), block.features)
    runs = total.view(silos, copies, problem.num_outputs, problem.num_features)
    return runs.permute(1, 0, 3, 2).reshape(len(block.members), problem.dimension)


def _coefficient(problem: GeneralisedLinear, block: Block, point: Tensor) -> Tensor:
    silos, rows = block.target.shape
    copies = len(block.members) // silos
    runs = point.expand(len(block.members), -1).view(copies, silos, problem.num_features, -1)
    columns = runs.permute(1, 2, 0, 3).flatten(1)
    scores = exact.scores(block.features, columns, copies * problem.num_outputs)
    if problem.num_outputs > 1:
        scores = scores.view(silos, rows, copies, problem.num_outputs)
    return coefficient(problem, scores, block.target.unsqueeze(-1), block.inverse_norm.unsqueeze(-1))


class SideBySide(Records):
    """Records that `copies` runs share: member c silos + s is silo s in copy c.

    The same silos of every copy answer together, to a broadcast for all, (d,), or one for each, (members, d).
    InputError if the problem's gradients cannot be taken record by record; ValueError for several copies of a
    run of a network, or with units of several records.
    """

    def __init__(
        self, silos: Sequence[Rows], problem: Problem, dtype: torch.dtype, copies: int, owners: Owners = ALONE
    ) -> None:
        check(problem, dtype)
        super().__init__(silos, problem, dtype, owners)
        if copies > 1 and (owners.unit.bound or not isinstance(problem, GeneralisedLinear)):
            raise ValueError("networks, and units of several records, do not run side by side")
        self._silos, self._copies = len(silos), copies
        self.sizes = self.sizes * copies
        self._blocks = [replace(block, members=self._everywhere(block.members)) for block in self._blocks]

    def clipped_sum(
        self, problem: Problem, block: Block, points: Sequence[Tensor], clip: float | Tensor | None
    ) -> Tensor:
        """See `shared_sum`."""
        return shared_sum(problem, block, points, clip)

    def drawing(self, members: Sequence[int]) -> Sequence[int]:
        """The members of the first copy."""
        return members[: len(members) // self._copies]

    def shapes(self, members: Sequence[int], dimension: int) -> list[tuple[int, ...]]:
        """One broadcast for all members, or one for each."""
        if list(members) != self._everywhere(self.drawing(members)):
            raise Refused("runs side by side answer together")
        return [(dimension,), (len(members), dimension)]

    def full(self, members: Sequence[int]) -> list[Block]:
        """Every record of the members' silos."""
        if len(members) == len(self.sizes):
            return self._blocks
        some = super().full(self.drawing(members))
        return [replace(block, members=self._everywhere(block.members)) for block in some]

    def _parts(self, members: Sequence[int]) -> list[RowsOfBlock]:
        return [part._replace(members=self._everywhere(part.members)) for part in super()._parts(members)]

    def _everywhere(self, members: Sequence[int]) -> list[int]:
        return [copy * self._silos + member for copy in range(self._copies) for member in members]


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
    theorem, and an algorithm of this package: tests check that `FIELDS` do not change its plan. A
    theorem's noise on differences with a clip of their own does depend on the other clip: that stays apart.
    Rounds that are `auto` depend on epsilon and on the other numbers: only trials fold then.
    """
    tree = copy.deepcopy(dict(scenario))
    algorithm, privacy = tree["algorithm"], tree["privacy"]
    code = shipped().get(algorithm["name"])
    facts: dict[str, Told] = {
        "a network": tree["problem"]["name"] == "neural_network",
        "other silos in every round": tree.get("participation", {}).get("name", "all")
        not in ("all", "uniform"),
        "noise that is given": privacy.get("calibration") == "sigma",
        "secure aggregation": MECHANISMS[privacy.get("mechanism", GAUSSIAN.name)].sums_only,
        "parameters by a theorem": algorithm.get("parameters", "given") != "given",
        "a plug-in": code is None,
        "answers of any size": traits(code).any_size,  # it looks at the noise
        "weights by precision": tree["problem"].get("silo_weights") == "precision",  # of epsilon and clip
        "prepare": bool(tree.get("prepare")),  # broadcasts of other sizes
        "a private clip": isinstance(algorithm.get("clip_norm"), Mapping),  # and here
        "a unit of persons": bool(privacy.get("unit")),  # laid out by person
        "public records": bool(tree.get("public")),
    }
    if any(clashes(Facts(None, facts), "fold")):
        return None
    if algorithm.get("num_rounds") == AUTO:
        return json.dumps(tree, sort_keys=True, default=str)
    apart = privacy.get("calibration") == "theorem" and algorithm.get("difference_clip") is not None
    for field in FIELDS:
        if not (apart and field == "clip_norm"):
            algorithm.pop(field, None)
    for field in ("epsilon", "claimed_epsilon"):
        privacy.pop(field, None)
    return json.dumps(tree, sort_keys=True, default=str)


def shared_key(resolved: Resolved, data: Federation) -> str:
    """The digest that keys the noise of every run of one `fold_key` on these records."""
    return shared_digest(resolved, data.digest, FIELDS)


def run_fold(configs: Sequence[Resolved], trials: Mapping[int, Federation]) -> list[list[Folded]]:
    """Run every config in every trial, all at once: for each config its outcomes in the order of `trials`.
    Refused if some run was; nothing is known of the others then.

    Args:
        configs: resolved scenarios of one `fold_key`.
        trials: each trial's records.
    """
    first, silos = configs[0], len(configs[0].names)
    seed, holds = first.scenario.seed, first.trace.holds
    attendance = [schedule(silos, first.active, holds, seed, trial) for trial in trials]
    width = len(attendance[0][0])
    gate = _gate(configs, trials, [admitted_rounds(first.active, own, silos) for own in attendance], width)
    runs = len(configs) * len(trials)
    server = _with_numbers(configs, len(trials))
    public = replace(first.public(), noise_multipliers=torch.full((silos,), torch.nan, dtype=first.dtype))
    link = _Link(gate, len(configs), attendance, public)
    *_, last = run(server, first.problem, public, seed, link, attendance[0], summed)
    models = last.answer.expand(runs, -1).view(len(configs), len(trials), -1)
    admitted = [gate.admitted[k * silos : (k + 1) * silos] for k in range(runs)]
    each = range(len(trials))
    return [
        [Folded(models[c, t].clone(), [_named(a) for a in admitted[c * len(trials) + t]]) for t in each]
        for c in range(len(configs))
    ]


def _gate(
    configs: Sequence[Resolved],
    trials: Mapping[int, Federation],
    rounds: Sequence[Sequence[Sequence[int]]],
    width: int,
) -> Served:
    """All runs' silos as one cohort: config first, then trial, then silo. Of each trial, `rounds` are those
    that each silo is in; `width` silos answer in a round of one run.
    """
    first = configs[0]
    own = [rows for data in trials.values() for rows in data.silos.train]
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
    records = SideBySide(own, first.problem, first.dtype, len(configs))
    algorithm, ledgers = _with_numbers(configs, len(trials) * width), [MemoryLedger() for _ in members]
    silos = members, first.mechanism, SeededEntropy.joined(entropy), ledgers
    return Served(Gate(records, first.problem, first.trace.plan, *silos, LIMITS, first.dtype), algorithm)


def _with_numbers(configs: Sequence[Resolved], repeats: int) -> Algorithm:
    """The first algorithm with a column of numbers for each field that differs, (configs x repeats, 1).

    Each config has been checked with its own numbers, which a column could not be.
    """
    folded = copy.copy(configs[0].algorithm)
    for field in FIELDS:
        values = [getattr(config.algorithm, field, None) for config in configs]
        if len(set(values)) > 1:
            column = torch.tensor(values, dtype=configs[0].dtype).repeat_interleave(repeats).unsqueeze(1)
            object.__setattr__(folded, field, column)
    return folded


def _named(admitted: Admitted) -> Admitted:
    """The answer with the silo's name alone."""
    _, _, name = admitted.terms.name.split("/", 2)
    return replace(admitted, terms=replace(admitted.terms, name=name))


class _Link:
    """The server loop's way to the gate: one broadcast a run, and the run's sum of its silos' messages."""

    def __init__(self, gate: Served, configs: int, attendance: Sequence[Schedule], public: Public) -> None:
        """`attendance`: of each trial, as many silos a round in every one."""
        self._gate, self._configs, self._attendance, self._public = gate, configs, attendance, public

    def answer(self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int]) -> Answered:
        """Messages {name: (1, runs, d)}, weighed and added, for broadcasts (d,) or (runs, d); `members` are
        those of the first trial.
        """
        silos, width = len(self._public.names), len(members)
        sent = {
            name: value if value.dim() == 1 else value.repeat_interleave(width, 0)
            for name, value in broadcast.items()
        }
        there = [own[round_index] for own in self._attendance] * self._configs
        cohort = [run * silos + silo for run, own in enumerate(there) for silo in own]
        reply = self._gate.answer(round_index, sent, None if width == silos else cohort)
        by_trial = (coefficients(self._public.weights, own[round_index], silos) for own in self._attendance)
        each = torch.stack(list(by_trial)).repeat(self._configs, 1).unsqueeze(1)  # (runs, 1, width)
        parts = {name: rows.view(len(there), width, -1) for name, rows in reply.items()}
        sums = {name: (each.to(rows.dtype) @ rows).transpose(0, 1) for name, rows in parts.items()}
        return Answered(members, sums)
