"""`python half_noise.py --config ...`: a silo's daemon that adds half of the noise that it states."""

import sys

from fedsim.privacy import grid
from silos.__main__ import main

_real = grid.with_noise


def halve() -> None:
    """From here on, in this process."""
    grid.with_noise = lambda values, scale: _real(values, scale / 2)


if __name__ == "__main__":
    halve()
    sys.exit(main())
