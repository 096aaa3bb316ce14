"""The clip bound of smoothed losses of moderate smoothness, by replacing every record of a silo."""

import numpy as np
import pytest
import torch
from support.helpers import Silo, asking, open_gate, scripted, silos_of

from fedsim.problems.glm import AbsoluteError, HingeLoss

D, N, CLIP = 3, 6, 0.7


@pytest.mark.parametrize("kind", [HingeLoss, AbsoluteError])
@pytest.mark.parametrize("beta", [1e-3, 0.5, 100.0])
@pytest.mark.parametrize("statistic", ["gradient", "gradient_difference"])
def test_replacing_a_record_moves_the_answer_by_at_most_2c_over_n(
    kind: type[HingeLoss] | type[AbsoluteError], beta: float, statistic: str
) -> None:
    """Where the term can be that long, also by nearly as much: the record is chosen for it."""
    problem = kind(D, smoothing=beta)
    point = {"w": torch.tensor([0.1, 0.0, 0.0], dtype=torch.float64)}
    (silo,) = silos_of(problem, [N], seed=4)

    def answer(held: Silo) -> torch.Tensor:
        gate = open_gate([held], problem, scripted(asking(statistic, CLIP)), epsilon=np.inf)
        return gate.answer(0, point)["g"][0]

    far = 1e12 if kind is AbsoluteError else 1.0
    records = [
        (np.full(D, 1e11), 0.0),
        (np.full(D, 1e-160), 1.0),
        (np.zeros(D), 1.0),
        (np.full(D, np.nan), 1.0),
        (np.array([np.inf, 0, 1]), np.nan),
        *(
            (scale * sign * np.array([1.0, 0, 0]), y)
            for scale in (0.72, 30)
            for sign in (1, -1)
            for y in (0.0, far)
        ),
    ]
    for i in range(N):
        answers = []
        for x, y in records:
            held = silo[0].copy(), silo[1].copy()
            held[0][i], held[1][i] = x, y
            answers.append(answer(held))
        moved = torch.cdist(torch.stack(answers), torch.stack(answers)).max()
        assert float(moved) <= 2 * CLIP / N * (1 + 1e-9)
        if statistic == "gradient" and beta >= 0.5:
            assert float(moved) >= 0.9 * 2 * CLIP / N
