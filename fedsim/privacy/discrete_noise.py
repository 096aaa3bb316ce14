"""Discrete Gaussian noise on integers, drawn exactly: P[x] proportional to exp(-x^2 / (2 scale^2)).

OpenDP 0.16 has the sampler of Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy"
(NeurIPS 2020, arXiv 2004.00010), in integers and fractions alone. Its random bits are those of OpenSSL's
RAND_bytes: a CTR-DRBG with AES-256 that seeds itself from the operating system, again in a forked child. It
cannot be seeded.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

_CHUNK = 1 << 16  # what comes back is a list of Python integers, of 32 bytes each and a place


def with_noise(values: Integers, scale: float) -> Integers:
    """`values` (d,) with independent noise on each; a sum beyond 64 bits becomes the nearest that is not.

    The standard deviation `scale` >= 0, finite, is read as the fraction that the float is; 0 adds nothing.
    """
    if scale == 0:
        return values.copy()
    from opendp.domains import atom_domain, vector_domain  # a library of 275 MB, which few processes need
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    draw = make_gaussian(vector_domain(atom_domain(T="i64")), l2_distance(T="f64"), scale)
    noisy = np.empty_like(values)
    for start in range(0, len(values), _CHUNK):
        noisy[start : start + _CHUNK] = draw(values[start : start + _CHUNK])
    return noisy
