"""The kinds of problem that a silo can take gradients of."""

from __future__ import annotations

from fedsim.problems.glm import GeneralisedLinear
from fedsim.problems.network import NeuralNetwork

Problem = GeneralisedLinear | NeuralNetwork
