"""How long a round may take: bounded at admission by the plan and public numbers, whatever the records are.

Seconds are counted, not timed, so that an offer is admitted alike at every start: operations of a record,
times records, passes and queries, each at the speed of the slowest that there are (`fedsim.problems.work`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import TYPE_CHECKING

import torch
from torch import dtype as DType  # noqa: N812

from fedsim.common.errors import Refused
from fedsim.problems.glm import OWN
from fedsim.problems.network import NeuralNetwork
from fedsim.protocol.batch import Poisson
from fedsim.protocol.statistics import shapes_of, size_of, statistic
from fedsim.protocol.unit import RECORD

if TYPE_CHECKING:
    from fedsim.privacy.mechanism import Mechanism
    from fedsim.problems.kinds import Problem
    from fedsim.problems.network_layers import Layers
    from fedsim.protocol.batch import Batch
    from fedsim.protocol.plan import Ask, Plan, QueryShape

SECONDS = 60.0
_STEP = 4e-4  # of starting an operation with its gradient, for however many records
_NUMBER, _PRODUCT = 1e-8, 5e-10  # of reading and writing a number, of a multiplication in a dense product
_EXACT, _INEXACT = 2e-5, 1e-7  # of a number of noise
_MOST, _HELD = 2048, 2**18  # records of a chain of layers at a time, and numbers that they hold


@dataclass(frozen=True)
class _Pass:
    """Seconds of the records' gradients at one point."""

    record: float  # of each
    call: float = 1e-3  # of each call
    width: int = 2**53  # records of a call
    raises: bool = False  # whether a record can make its call raise

    def seconds(self, records: int) -> float:
        """Of so many; where all make their calls raise, `each` halves these until they are of one."""
        if self.raises:
            return 2 * records * (self.width * self.record + self.call)
        return records * self.record + ceil(records / self.width) * self.call


def check_time(
    plan: Plan, rounds: Sequence[int], problem: Problem, records: int, mechanism: Mechanism, dtype: DType
) -> None:
    """Refuse a plan with a round that may take too long in a silo of so many records, a public number."""
    most = seconds(plan, rounds, problem, records, mechanism, dtype)
    if most > SECONDS:
        of = f"{records:,} records{'' if plan.unit == RECORD else ' (policy.max_records)'}"
        hint = "take smaller batches, fewer queries a round or a smaller model"
        raise Refused(f"offer: a round may take {ceil(most):,} s for {of}, at most {SECONDS:g}: {hint}")


def seconds(
    plan: Plan, rounds: Sequence[int], problem: Problem, records: int, mechanism: Mechanism, dtype: DType
) -> float:
    """Of the longest of these rounds, at most."""
    one = _pass(problem, dtype)
    if plan.unit != RECORD:  # whose terms are held before they are clipped
        one = replace(one, record=one.record + problem.dimension * _NUMBER)
    noise = _INEXACT if mechanism.floating else _EXACT

    def asked(ask: Ask) -> float:
        size = _size(ask.batch, records) if plan.unit == RECORD else records  # another unit has any number
        return sum(_query(query, size, one, problem, noise) for query in ask.queries)

    different = {id(plan.rounds[r]): plan.rounds[r] for r in rounds}  # rounds that are alike are one object
    return max((sum(map(asked, asks)) for asks in different.values()), default=0.0)


def _size(batch: Batch, records: int) -> int:
    """Records of a batch at most; of a Poisson batch but once in 10^6."""
    size = batch.size(records)
    return min(records, ceil(2 * size + 50)) if isinstance(batch, Poisson) else int(size)


def _query(query: QueryShape, records: int, one: _Pass, problem: Problem, noise: float) -> float:
    shapes = shapes_of(query, problem.dimension, problem.num_features)
    products = problem.num_features * query.transform
    if statistic(query.statistic).squares:
        products += 20 * shapes.features**2
    own = records * (100 * _NUMBER + products * _PRODUCT)
    taken = max(query.points, statistic(query.statistic).work(query)) * one.seconds(records)
    return own + taken + noise * size_of(query, problem.dimension, problem.num_features)


def _pass(problem: Problem, dtype: DType) -> _Pass:
    if isinstance(problem, NeuralNetwork):
        return _network(problem, dtype)
    outputs = problem.num_outputs
    record = problem.num_features * (2 * outputs * _PRODUCT + 2 * _NUMBER) + 20 * outputs * _NUMBER
    if type(problem) in OWN:
        return _Pass(record)
    from fedsim.problems import linear_records  # with graphs of records, as below

    graph = linear_records.one_record(problem, dtype)["coefficient"]
    tile = linear_records.tile(graph)
    return _Pass(record + graph.nanoseconds / 1e9, len(graph.steps) * _STEP, tile, graph.raises)


def _network(problem: NeuralNetwork, dtype: DType) -> _Pass:
    from fedsim.problems.network_layers import Layers  # loaded where there is a network
    from silos.vault.network import tile

    form, own = problem.form(dtype), problem.dimension * _NUMBER
    if isinstance(form, Layers):
        numbers, products = _layers(problem, form, dtype)
        record, call = numbers * _NUMBER + products * _PRODUCT, len(form.chain) * _STEP + own
        return _Pass(record, call, min(_MOST, max(1, _HELD // numbers)))
    graph = form.record
    record, call = own + graph.nanoseconds / 1e9, (len(graph.steps) + 4) * _STEP
    return _Pass(record, call, tile(problem, dtype), graph.raises)


def _layers(problem: NeuralNetwork, form: Layers, dtype: DType) -> tuple[int, int]:
    """Numbers and multiplications of a record: three products a layer, and the quicker of two norms."""
    parameters = problem.parameters(problem.start(0).to(dtype))
    x = torch.zeros(1, problem.num_features, dtype=dtype)
    numbers = products = 0
    for layer in form.chain:
        numbers, x = numbers + x.numel(), layer(x, parameters)
        numbers += x.numel()
        window = layer.numbers.get("kernel_size")
        if window is not None and not layer.names:
            products += 6 * x.numel() * (prod(window) if isinstance(window, tuple) else window**2)
        if layer.names:
            q, p = (weight := parameters[f"{layer.prefix}weight"]).shape[0], weight[0].numel()
            places = x.numel() // q
            numbers += places * (p + q)
            products += 3 * places * p * q + min(places**2 * (p + q), (places + 10) * p * q)
    return numbers, products
