"""Gates of silos whose answers are added up, and a server loop that reads the sums."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import torch
from support.helpers import DELTA, LIMITS, Silo, names_of, plan_of
from torch import Tensor

from fedsim.privacy.sum_mechanism import SumMechanism
from fedsim.problems.glm import GeneralisedLinear
from fedsim.protocol.contract import Algorithm
from fedsim.protocol.links import Answered
from fedsim.protocol.plan import Plan, Terms
from fedsim.protocol.pool import Pool, Share
from fedsim.simulation.host import MemoryLedger
from server.aggregate import Totals
from silos.front.served import Served
from silos.vault.entropy import SeededEntropy
from silos.vault.gate import Gate, lay_out


def sums_gate(
    data: Sequence[Silo],
    problem: GeneralisedLinear,
    algorithm: Algorithm,
    mechanism: SumMechanism,
    pool: Pool,
    *,
    noise: float = 0.0,
    clips: Sequence[float] | None = None,
    plan: Plan | None = None,
    seed: int = 0,
) -> Served:
    """A gate of the pool's silos, without a budget; `noise` is the common multiplier."""
    sizes, names = [len(target) for _, target in data], names_of(len(data))
    plan = plan_of(algorithm, problem, sizes) if plan is None else plan
    terms = [
        Terms(name, n, inf, DELTA, range(len(plan.rounds)), noise, Share(pool, i, clips[i] if clips else 1.0))
        for i, (name, n) in enumerate(zip(names, sizes, strict=True))
    ]
    entropy = SeededEntropy(seed, 0, names, ["a test's run"] * len(names))
    ledgers = [MemoryLedger() for _ in terms]
    records = lay_out(data, problem, torch.float64)
    return Served(
        Gate(records, problem, plan, terms, mechanism, entropy, ledgers, LIMITS, torch.float64), algorithm
    )


@dataclass(frozen=True)
class SumsLink:
    """The server loop's way to the sums of one gate's silos."""

    gate: Served
    totals: Totals

    def answer(self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int]) -> Answered:
        rows = self.gate.answer(round_index, broadcast, members)
        sums = {name: value.sum(0) for name, value in rows.items()}
        message = self.totals.message(round_index, broadcast, sums, members)
        return Answered(members, {name: value.unsqueeze(0) for name, value in message.items()})
