"""Tests for algorithms of anyone: the properties that fedsim's own algorithms are tested for.

In a test file, one class is enough:

    class TestMine(AlgorithmTests):
        example = Example(
            short=lambda batch: Mine(num_rounds=4, step_size=0.1, clip_norm=1.0, batch=batch),
            convergent=lambda step: Mine(num_rounds=500, step_size=step, clip_norm=1.0),
        )

On the command line, `fedsim check` runs the same and prints a table.
"""

from fedsim.testing.federations import Example, before_the_last_round, final, last_of_averaged
from fedsim.testing.properties import PROPERTIES, AlgorithmTests, Property

__all__ = [
    "PROPERTIES",
    "AlgorithmTests",
    "Example",
    "Property",
    "before_the_last_round",
    "final",
    "last_of_averaged",
]
