"""Public randomness is NumPy's Philox stream of a key that SHA-256 gives."""

import numpy as np

from fedsim.common.seeds import digest128, generator


def test_a_generator_is_philox_with_the_key():
    """State and numbers are those of `Philox(key=...)`, on every seed that was ever used."""
    for part in range(50):
        found, wanted = generator("a", part), np.random.Generator(np.random.Philox(key=digest128("a", part)))
        assert str(found.bit_generator.state) == str(wanted.bit_generator.state)
        assert np.array_equal(found.permutation(30), wanted.permutation(30))
        assert np.array_equal(found.standard_normal(9), wanted.standard_normal(9))
