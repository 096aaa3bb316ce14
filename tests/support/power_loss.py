"""What a disk may hold after a loss of power: of the writes that were not synchronised, any part."""

import random
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

WRITE, TRUNCATE, UNLINK, SYNC = 1, 2, 3, 4
_HEAD = struct.Struct("4q")
_SECTOR, _PAGE = 512, 4096
Files = dict[str, bytes]


class Call(NamedTuple):
    """One call of `write_log.c`'s record."""

    call: int
    name: str
    offset: int
    data: bytes


def files_of(ledger: Path) -> Files:
    """A ledger's files by name, without those that are empty and those that no crash outlives."""
    found = {file.name: file.read_bytes() for file in ledger.parent.glob(f"{ledger.name}*")}
    return {name: data for name, data in found.items() if data and not name.endswith("-shm")}


def calls(log: bytes) -> list[Call]:
    """The record, in order; one that was cut off ends it."""
    found, place = [], 0
    while place + _HEAD.size <= len(log):
        call, name, offset, length = _HEAD.unpack_from(log, place)
        place += _HEAD.size
        found.append(Call(call, log[place : place + name].decode(), offset, log[place + name :][:length]))
        place += name + length
    return found


def made(before: Mapping[str, bytes], changes: list[Call]) -> Files:
    """Files after these changes."""
    files = {name: bytearray(data) for name, data in before.items()}
    for call, name, offset, data in changes:
        if call == UNLINK:
            files.pop(name, None)
        elif call == TRUNCATE:
            file = files.setdefault(name, bytearray())
            file[:] = file[:offset].ljust(offset, b"\0")
        elif call == WRITE:
            file = files.setdefault(name, bytearray())
            file.extend(bytes(max(0, offset - len(file))))
            file[offset : offset + len(data)] = data
    return {name: bytes(data) for name, data in files.items() if data}


def ends(record: list[Call]) -> Iterator[list[Call]]:
    """What a killed process may have made of a record: its last change whole, none, or to a page's end."""
    yield record
    yield record[:-1]
    for last in record[-1:]:
        for cut in range(_PAGE - last.offset % _PAGE, len(last.data), _PAGE):
            yield [*record[:-1], last._replace(data=last.data[:cut])]


def after_loss(before: Mapping[str, bytes], record: list[Call], rng: random.Random) -> Files:
    """Files as a loss of power may leave them.

    A file's changes are certain once it was synchronised, and so are removals before that. Of the others none
    outlives, or each does by chance, the last sectors of a write perhaps without the first.
    """
    kept, pending = [], list[Call]()
    for call in record:
        if call.call != SYNC:
            pending.append(call)
            continue
        certain = [each.call == UNLINK or each.name == call.name for each in pending]
        kept += [each for each, sure in zip(pending, certain, strict=True) if sure]
        pending = [each for each, sure in zip(pending, certain, strict=True) if not sure]
    chance = rng.choice([0.0, 0.5, 0.9])
    for each in pending:
        if rng.random() < chance:
            start = rng.choice([0, 0, _SECTOR * rng.randrange(len(each.data) // _SECTOR + 1)])
            kept.append(each._replace(offset=each.offset + start, data=each.data[start:]))
    return made(before, kept)


def put_back(ledger: Path, files: Mapping[str, bytes]) -> None:
    """Make a ledger's files what they would be."""
    for file in ledger.parent.glob(f"{ledger.name}*"):
        file.unlink()
    for name, data in files.items():
        place = ledger.with_name(name)
        place.touch(0o600)
        place.write_bytes(data)
