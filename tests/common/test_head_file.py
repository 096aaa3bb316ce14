"""The head file: a chain that has lost its end, or a head that cannot tell, is refused; one ahead is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsim.common.errors import Refused
from fedsim.common.head_file import Head, HeadFile, head_path


def entry(seq: int) -> Head:
    return Head(seq, bytes([seq]) * 32)


def written(folder: Path, last: int) -> Path:
    chain = folder / "chain"
    HeadFile.create(chain, entry(1))
    file = HeadFile.open(chain, entry(1), bytes(32))
    for seq in range(2, last + 1):
        file.write(entry(seq))
    file.close()
    return chain


def opens(chain: Path, end: int) -> bool:
    try:
        HeadFile.open(chain, entry(end), entry(end - 1).hash).close()
    except Refused:
        return False
    return True


@pytest.mark.parametrize("last", [1, 2, 7, 8])
@pytest.mark.parametrize("ahead", [-2, -1, 0, 1, 2])
def test_a_chain_may_be_one_ahead_and_never_behind(tmp_path: Path, last: int, ahead: int) -> None:
    chain = written(tmp_path, last)
    assert HeadFile.read(chain) == entry(last)
    if last + ahead > 0:
        assert opens(chain, last + ahead) == (ahead in (0, 1))
    assert HeadFile.read(chain) == entry(last + (ahead == 1))


def test_every_flip_reads_whole_or_is_refused(tmp_path: Path) -> None:
    chain = written(tmp_path, 8)
    place = head_path(chain)
    whole = place.read_bytes()
    for start, newest in ((0, True), (4096, False)):
        for offset in range(start, start + 80):
            data = bytearray(whole)
            data[offset] ^= 1
            place.write_bytes(data)
            assert opens(chain, 8) == newest  # of a torn newest slot the other names the entry before
            place.write_bytes(data)
            assert not opens(chain, 7)


@pytest.mark.parametrize("data", [None, b"", bytes(8192)])
def test_a_head_that_is_missing_or_empty_is_refused(tmp_path: Path, data: bytes | None) -> None:
    chain = written(tmp_path, 3)
    head_path(chain).unlink()
    if data is not None:
        head_path(chain).write_bytes(data)
    assert not opens(chain, 3)


def test_a_lost_chain_is_not_begun_anew(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="never begun anew"):
        HeadFile.create(written(tmp_path, 2), entry(1))
    head_path(tmp_path / "chain").unlink()
    HeadFile.create(tmp_path / "chain", entry(1))
    HeadFile.create(tmp_path / "chain", entry(1))  # an enrolment that was cut short
