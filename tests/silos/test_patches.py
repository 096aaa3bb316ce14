"""What a convolution sees at every place, against torch's own `unfold`."""

import pytest
import torch
from torch.nn.functional import unfold

from silos.layers import _patches


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [
        ((5, 5), (1, 1), (0, 0), (1, 1)),
        ((3, 2), (2, 1), (1, 0), (1, 2)),
        ((3, 3), (1, 3), (2, 1), (2, 1)),
        ((1, 1), (2, 2), (0, 0), (1, 1)),
    ],
)
def test_patches_are_those_of_unfold(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    flipped: bool,
) -> None:
    x = torch.randn(6, 3, 11, 9, generator=torch.Generator().manual_seed(0))
    x = x.transpose(2, 3).contiguous().transpose(2, 3) if flipped else x
    assert torch.equal(
        _patches(x, kernel, stride, padding, dilation), unfold(x, kernel, dilation, padding, stride)
    )
