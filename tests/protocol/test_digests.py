"""The digest names one set of arrays and no other."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedsim.protocol.plain import digest

W = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
BASE = {"w": W, "v": torch.zeros(3, dtype=torch.float64)}


@pytest.mark.parametrize(
    "other",
    [
        {**BASE, "w": W + torch.tensor([[0.0, 0.0], [0.0, 1e-15]])},
        {**BASE, "w": W.float()},
        {**BASE, "w": W.reshape(4)},
        {**BASE, "w": W.reshape(1, 2, 2)},
        {**BASE, "w": W.reshape(4, 1)},
        {**BASE, "w": W.T},
        {**BASE, "w": W.view(torch.int64)},
        {**BASE, "w": W[:1]},
        {"w": W},
        {**BASE, "u": W},
        {"x": W, "v": BASE["v"]},
        {"w": BASE["v"], "v": W},
        {**BASE, "v": -BASE["v"]},
        {},
    ],
    ids=range(14),
)
def test_any_change_of_name_type_shape_or_value_changes_the_digest(other: dict[str, Tensor]) -> None:
    assert digest(other) != digest(BASE)


def test_the_digest_is_of_the_arrays_and_not_of_their_layout() -> None:
    same = {"v": BASE["v"].clone(), "w": torch.stack([W[:, 0], W[:, 1]], 1)}
    strided = {**BASE, "w": W.T.contiguous().T}
    assert digest(BASE) == digest(same) == digest(strided)
    assert len(digest(BASE)) == 32
    assert digest({"w": W.clone().requires_grad_()}) == digest({"w": W})


names = st.text("wv1:(),float64.", min_size=0, max_size=6)
arrays = st.dictionaries(
    names, st.lists(st.sampled_from([0.0, 1.0, -2.5]), max_size=3).map(tuple), max_size=3
)


@settings(derandomize=True, max_examples=300)
@given(one=arrays, other=arrays)
def test_two_sets_of_arrays_share_a_digest_only_if_equal(
    one: dict[str, tuple[float, ...]], other: dict[str, tuple[float, ...]]
) -> None:
    def of(values: dict[str, tuple[float, ...]]) -> bytes:
        return digest(
            {name: torch.from_numpy(np.array(value, dtype=float)) for name, value in values.items()}
        )

    assert (of(one) == of(other)) == (one == other)
