"""The kinds of problem that a silo can take gradients of: linear models, and networks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

import torch

from fedsim.problems import exact
from fedsim.problems.glm import BUILT_IN, OWN, GeneralisedLinear

if TYPE_CHECKING:  # layers are loaded where there is a network
    from torch import Tensor

    from fedsim.problems.network import NeuralNetwork

Problem = Union[GeneralisedLinear, "NeuralNetwork"]
GROUP = "fedsim.problems"  # of entry points
NETWORK = "neural_network"
NAMES = (*BUILT_IN, NETWORK)  # of the problems that fedsim ships


def check(problem: Problem, dtype: torch.dtype) -> None:
    """Check, without records, that the problem can be applied to each record by itself; InputError if not."""
    if not isinstance(problem, GeneralisedLinear):
        problem.form(dtype)
    elif type(problem) not in OWN:
        from fedsim.problems import linear_records  # with graphs of records, which take torch a while

        linear_records.one_record(problem, dtype)


def accepts(problem: Problem, target: Tensor) -> Tensor:
    """Which targets the loss is defined for, each decided from itself alone; a mask in their shape."""
    if not isinstance(problem, GeneralisedLinear) or type(problem) in OWN:
        return problem.accepts(target)
    from fedsim.problems import linear_records

    return linear_records.accepts(problem, target)


def coefficient(problem: GeneralisedLinear, scores: Tensor, target: Tensor, inverse_norm: Tensor) -> Tensor:
    """l'(score, y) of every record of a linear model, in the shape of the scores, as a tensor of its own; NaN
    where it cannot be computed. Scores are (..., records) for one output, (..., records, outputs) else;
    `target` and `inverse_norm`, 1 / |x|, are of a shape that broadcasts to theirs, without the axis of
    outputs.
    """
    if type(problem) in OWN:
        return problem.coefficient(scores, target, inverse_norm)
    from fedsim.problems.costed import Costed

    if type(problem) is Costed:
        return problem.coefficient(scores, target, inverse_norm)
    from fedsim.problems import linear_records

    return linear_records.coefficient(problem, scores, target, inverse_norm)


def scores_of_records(problem: Problem, features: Tensor, w: Tensor) -> Tensor:
    """Scores at w, (d,) or (silos, d), each made of its record alone, in float64 to the last bit
    (`fedsim.problems.exact`); (..., records) for one output, (..., records, outputs) else.
    """
    if not isinstance(problem, GeneralisedLinear):
        from fedsim.problems import network_pass  # layers are loaded where there is a network

        return network_pass.scores(problem, features, w)
    return exact.scores(features, w, problem.num_outputs)  # whatever the problem makes of `scores`


def probabilities(problem: Problem, scores: Tensor) -> Tensor | None:
    """P(y = k), (records, classes), each made of its record's score alone; None where there are none.

    NaN where a record's cannot be computed. InputError if a problem of others has no graph of one record.
    """
    known = head(problem)
    if type(known) in OWN or type(known).probabilities is GeneralisedLinear.probabilities:
        return known.probabilities(scores)
    from fedsim.problems import linear_records

    return linear_records.probabilities(known, scores)


def head(problem: Problem) -> GeneralisedLinear:
    """The loss and the predictions as functions of the scores."""
    return problem if isinstance(problem, GeneralisedLinear) else problem.head


def gives_probabilities(problem: Problem) -> bool:
    """Whether its scores stand for probabilities of classes."""
    outputs = problem.num_outputs
    return head(problem).probabilities(torch.zeros((1, outputs) if outputs > 1 else 1)) is not None
