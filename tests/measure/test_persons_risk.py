"""The loss with which each person weighs the same, beside that of records."""

import numpy as np
import pytest
import torch

from fedsim.data.federation import SiloSplit
from fedsim.measure.evaluator import Evaluator
from fedsim.problems.glm import LinearRegression
from fedsim.protocol.rows import Rows


def silo(name: str, target: list[float], persons: list[int] | None) -> SiloSplit:
    x, y = np.zeros((len(target), 1)), np.array(target)
    return SiloSplit(name, Rows(x, y), Rows(x, y, owners=None if persons is None else np.array(persons)))


def test_each_person_weighs_the_same_and_in_two_silos_as_two() -> None:
    silos = [silo("a", [2.0, 4.0, 0.0], [7, 7, 1]), silo("b", [6.0], [7])]
    tested = Evaluator(LinearRegression(1), silos, torch.float64)(torch.zeros(1).double(), last=True)
    squares = np.array([2.0, 4.0, 0.0, 6.0]) ** 2 / 2
    assert tested[1] == pytest.approx(squares.mean())
    assert tested[2]["person_loss"] == pytest.approx(np.mean([squares[:2].mean(), 0.0, squares[3]]))


def test_there_is_none_where_a_silo_does_not_say_whose_its_records_are() -> None:
    silos = [silo("a", [2.0], [0]), silo("b", [6.0], None)]
    tested = Evaluator(LinearRegression(1), silos, torch.float64)(torch.zeros(1).double(), last=True)
    assert "person_loss" not in tested[2]
