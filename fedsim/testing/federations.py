"""Examples of algorithms, and small federations of made-up records to try them on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedsim.isolated.parts import trace_of
from fedsim.privacy.mechanism import Mechanism
from fedsim.privacy.registry import MECHANISMS
from fedsim.problems.glm import AbsoluteError, GeneralisedLinear, LinearRegression
from fedsim.protocol.batch import Batch
from fedsim.protocol.contract import Algorithm, Public, traits
from fedsim.protocol.limits import LIMITS, Limits
from fedsim.protocol.links import Answered, Link
from fedsim.protocol.plan import Plan, Terms
from fedsim.protocol.rows import Rows
from fedsim.simulation.host import DirectLink, MemoryLedger
from server.aggregate import weighted
from server.loop import Progress, run
from server.participation import Schedule, schedule
from silos.front.served import Served
from silos.vault.entropy import Entropy, SeededEntropy
from silos.vault.gate import Gate, lay_out


def final(answers: Sequence[Tensor]) -> Tensor:
    """The model returned."""
    return answers[-1]


def last_of_averaged(answers: Sequence[Tensor]) -> Tensor:
    """The last iterate R a_R - (R-1) a_{R-1}, where a_r is the mean of r iterates.

    The mean itself keeps its first iterates for ever and comes near the optimum only as 1 / R.
    """
    rounds = len(answers) - 1
    return rounds * answers[-1] - (rounds - 1) * answers[-3]


def before_the_last_round(answers: Sequence[Tensor]) -> Tensor:
    """The last iterate that was broadcast, where the model returned is a random earlier one."""
    return answers[-2]


def require(holds: bool, reason: str) -> None:
    """Raise AssertionError with the reason why a property does not hold."""
    if not holds:
        raise AssertionError(reason)


@dataclass(frozen=True, kw_only=True)
class Example:
    """An algorithm with numbers to test it by."""

    short: Callable[[Batch], Algorithm]  # a few rounds (2 to 12 queries in all) on batches of the given kind
    convergent: Callable[[float], Algorithm]  # enough rounds for `tolerance`, given 1 / L
    # from the answers before every round and the final one, what reaches the optimum
    estimate: Callable[[Sequence[Tensor]], Tensor] = final
    # L2 distance to the optimum that it must reach without noise; where the run starts, the distance is
    # 0.3 to 1
    tolerance: float = 1e-3
    steps: tuple[float, ...] = (1.0,)  # factors of 1 / L for `convergent`; the first that reaches counts
    anchors: frozenset[Batch] | None = None  # batches it asks for besides its own; None: not compared
    # {name of a property, or of a case of several: why it cannot hold}, such as {"linear in a ball": "a
    # Euclidean projection after steps scaled by coordinate"}
    left_out: Mapping[str, str] = field(default_factory=dict)


DELTA = 1e-5
Silo = tuple[np.ndarray, np.ndarray]  # features (n, num_features) and target (n,)


def silos_of(problem: GeneralisedLinear, sizes: Sequence[int], seed: int = 0) -> list[Silo]:
    """Random records with a constant last feature and targets that the problem accepts."""
    rng = np.random.default_rng(seed)
    made = list[Silo]()
    for n in sizes:
        x = rng.normal(size=(n, problem.num_features))
        x[:, -1] = 1
        classes = max(2, problem.num_outputs)
        made.append((x, target_of(problem, rng.normal(size=n), rng.integers(classes, size=n))))
    return made


def target_of(problem: GeneralisedLinear, real: np.ndarray, label: np.ndarray) -> np.ndarray:
    """The real numbers or the labels, whichever the problem predicts."""
    return real if isinstance(problem, LinearRegression | AbsoluteError) else label.astype(float)


def names_of(count: int) -> list[str]:
    """Names of so many silos."""
    return [f"silo{i}" for i in range(count)]


def public_of(
    sizes: Sequence[int], weights: Sequence[float] | None = None, dtype: torch.dtype = torch.float64
) -> Public:
    """A federation's public numbers; weights are by size unless they are given."""
    n = torch.tensor(sizes, dtype=dtype)
    p = n / n.sum() if weights is None else torch.tensor(weights, dtype=dtype)
    return Public(tuple(names_of(len(sizes))), n, p, torch.zeros(len(sizes), dtype=dtype))


def plan_of(
    algorithm: Algorithm, problem: GeneralisedLinear, sizes: Sequence[int], dtype: torch.dtype = torch.float64
) -> Plan:
    """The plan that a dry run finds."""
    return trace_of(algorithm, problem, public_of(sizes, dtype=dtype), 0, LIMITS).plan


def open_gate(
    data: Sequence[Sequence[np.ndarray]],
    problem: GeneralisedLinear,
    algorithm: Algorithm,
    *,
    epsilon: float | Sequence[float] = 1.0,
    mechanism: str | Mechanism = "gaussian",
    rounds: Sequence[Sequence[int]] | None = None,
    names: Sequence[str] | None = None,
    seed: int = 0,
    limits: Limits = LIMITS,
    dtype: torch.dtype = torch.float64,
    plan: Plan | None = None,
    entropy: Entropy | None = None,
) -> Served:
    """A gate over `data`. Budget infinity clips but adds no noise, which shows what the noise hides."""
    sizes = [len(own[1]) for own in data]
    names = names_of(len(data)) if names is None else names
    plan = plan_of(algorithm, problem, sizes, dtype) if plan is None else plan
    budgets = [epsilon] * len(data) if isinstance(epsilon, float | int) else list(epsilon)
    own = [range(len(plan.rounds))] * len(data) if rounds is None else rounds
    terms = [Terms(*each) for each in zip(names, sizes, budgets, [DELTA] * len(data), own, strict=True)]
    entropy = SeededEntropy(seed, 0, names, ["a test's run"] * len(names)) if entropy is None else entropy
    chosen = MECHANISMS[mechanism] if isinstance(mechanism, str) else mechanism
    records, ledgers = lay_out([Rows(*own) for own in data], problem, dtype), [MemoryLedger() for _ in terms]
    arrays = None
    if traits(algorithm).any_size:  # as a run's gate
        arrays = trace_of(algorithm, problem, public_of(sizes, dtype=dtype), 0, LIMITS).broadcasts
    gate = Gate(records, problem, plan, terms, chosen, entropy, ledgers, limits, dtype, arrays)
    return Served(gate, algorithm)


@dataclass(frozen=True)
class HostsLink:
    """The server loop's way to silos on several hosts, in consecutive runs of their order."""

    gates: Sequence[Served]
    sizes: Sequence[int]

    def answer(self, round_index: int, broadcast: Mapping[str, Tensor], members: Sequence[int]) -> Answered:
        """See `fedsim.protocol.links.Link`."""
        parts, first = [], 0
        for gate, size in zip(self.gates, self.sizes, strict=True):
            own = [member - first for member in members if first <= member < first + size]
            parts += [gate.answer(round_index, broadcast, own)] if own else []
            first += size
        return Answered(members, {name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def drive(
    gate: Served | Link, algorithm: Algorithm, problem: GeneralisedLinear, public: Public, rounds: Schedule
) -> list[Progress]:
    """Run the server loop to the end."""
    link = DirectLink(gate.answer) if isinstance(gate, Served) else gate
    return list(run(algorithm, problem, public, 0, link, rounds, weighted))


def all_take_part(plan: Plan, silos: int) -> Schedule:
    """Every silo in every round."""
    return schedule(silos, None, [False] * len(plan.rounds), 0, 0)
