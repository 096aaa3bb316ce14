"""Files with one bit turned."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path


def flipped(files: Sequence[Path], count: int, seed: int = 0) -> Iterator[str]:
    """So many times: turn a bit of the first file, or each fourth time of another's bytes that are not 0 (a
    head file is mostly of zeros), and say which.

    Before each time, and at the end, the files are as they were, and what was made beside the first is gone.
    """
    rng, saved = random.Random(seed), [file.read_bytes() for file in files]

    def restore() -> None:
        for file in files[0].parent.glob(f"{files[0].name}*"):
            file.unlink()
        for file, content in zip(files, saved, strict=True):
            file.write_bytes(content)

    for number in range(count):
        restore()
        which = rng.randrange(1, len(files)) if number % 4 == 3 else 0
        bad = bytearray(saved[which])
        place, bit = rng.choice([i for i, byte in enumerate(bad) if byte or not which]), rng.randrange(8)
        bad[place] ^= 1 << bit
        files[which].write_bytes(bad)
        yield f"{files[which].name}, byte {place}, bit {bit}"
    restore()
