"""Whether words of 64 bits look as if drawn at random, and splitters whose words are not."""

import numpy as np
from scipy.stats import chi2

from fedsim.secagg.reports import Words, split


def worst_byte(words: Words) -> float:
    """The least p-value over bytes of words, of Pearson's test that all 256 values are equally likely; times
    the number of tests."""
    seen = words.astype("<u8").ravel().view(np.uint8).reshape(-1, 8)
    counted = [np.bincount(seen[:, byte], minlength=256) for byte in range(8)]
    expected = len(seen) / 256
    statistics = [((count - expected) ** 2).sum() / expected for count in counted]
    return 8 * float(chi2.sf(max(statistics), 255))


def narrow_split(counts: np.ndarray) -> tuple[Words, Words]:
    """A splitter that draws the mask from the range of what it should hide."""
    mask = np.random.default_rng().integers(-(2**20), 2**20, counts.shape)
    return mask.view(np.uint64), (counts - mask).view(np.uint64)


def slightly_odd_split(counts: np.ndarray) -> tuple[Words, Words]:
    """A splitter whose lowest byte is even too often (0.55 of the time)."""
    mask, _ = split(counts)
    mask = np.where(np.random.default_rng().random(mask.shape) < 0.1, mask & ~np.uint64(1), mask)
    return mask, counts.view(np.uint64) - mask
