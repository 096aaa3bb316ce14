"""Which theorem chooses an algorithm's numbers: for the noise that it states, or for the silos' own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedsim.common.errors import InputError
from fedsim.protocol.batch import Batch, Fresh
from fedsim.theory import joint_convex, joint_proximal
from fedsim.theory.averaged_noise import averaged_noise
from fedsim.theory.joint import Case
from fedsim.theory.parameters import TABLE
from fedsim.theory.premises import Premises
from fedsim.theory.symbols import symbols
from fedsim.theory.theorem import Derived

JOINT: dict[str, Callable[[Case], Derived]] = {
    "noisy_minibatch_sgd": joint_convex.noisy_minibatch_sgd,
    "accelerated_minibatch_sgd": joint_convex.accelerated_minibatch_sgd,
    "multi_stage_accelerated_minibatch_sgd": joint_convex.multi_stage_accelerated_minibatch_sgd,
    "prox_sgd": joint_proximal.prox_sgd,
    "prox_pl_svrg": joint_proximal.prox_pl_svrg,
    "prox_spider": joint_proximal.prox_spider,
}
"""{algorithm: its theorem's choice for the plan's own noise}: the algorithms of `parameters.TABLE`."""


def chosen_numbers(
    name: str, premises: Premises, given: Mapping[str, Any], batch: Batch | None, accountant: bool
) -> Derived:
    """Every number of an algorithm, as its theorem chooses it; `given` ones among them are not used.

    For the theorem's own noise a given number changes no other: each is for the theorem's own choices. With
    the accountant the rest is chosen for the noise of the plan that has the given numbers.

    Args:
        name: the algorithm, as scenarios call it.
        premises: what the theorem starts from.
        given: {field of the algorithm: number} that the scenario says.
        batch: which records, where the scenario says so.
        accountant: whether silos calibrate their own noise.

    Raises:
        InputError: no theorem chooses this algorithm's numbers, or a constant that it needs is missing.
    """
    if name not in TABLE:
        expected = f"no theorem chooses the numbers of {name}; those of {', '.join(TABLE)} have one"
        raise InputError("scenario.algorithm.parameters", "theorem", expected)
    s = symbols(premises)
    if not accountant:
        return TABLE[name](s, isinstance(batch, Fresh))
    (L,) = s.need(f"the theorem of {name}", "L")
    clip = given.get("clip_norm", L / s.heaviest)
    return JOINT[name](Case(s, averaged_noise(premises), clip, batch, given))
