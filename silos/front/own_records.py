"""A deployed silo's own records, and what it remembers them by.

Where they live elsewhere, a command of the operator (`reader`) writes them as a table, once. It is named in
silo.yaml alone, runs in a process of its own with the operator's environment (a database's password, say),
and has ended before the silo reads what it wrote. The daemon loads none of its code.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, run
from typing import TYPE_CHECKING

import numpy as np

from fedsim.common.durable import atomic_file, remove_drafts
from fedsim.common.errors import InputError
from fedsim.common.identity import Identity
from fedsim.data.prepare import prepare
from fedsim.data.source import ALIKE, alike, numbered, require_labels
from fedsim.protocol.rows import Rows
from fedsim.protocol.unit import RECORD, Person, PersonAccount, Record
from silos.front.config import ROOT, Config

if TYPE_CHECKING:
    from fedsim.problems.public_records import PublicRecords

_Unit = Record | Person | PersonAccount


@dataclass(frozen=True, eq=False)
class OwnRecords:
    """A silo's rows, prepared as a simulated silo's, and what they are of.

    Where a column says whose they are, `tokens` has the SHA-256 of each id by the owners' numbers, and
    `alike` is `fedsim.data.source.alike` of the ids. They are for this process alone: no id is kept, and a
    token leaves under a hash with the silo's key at most. Of `groups` these are the names, which are public.
    """

    rows: Rows
    num_classes: int
    tokens: tuple[bytes, ...] = ()
    alike: int = 0
    groups: tuple[str, ...] = ()
    recoded: bool = False  # as of `Source`

    def units(self, unit: _Unit) -> int:
        """Number of records or persons; public, but for records with unit person, and persons under
        `add_remove`. InputError where nothing says whose the records are.
        """
        return self.rows.n if isinstance(unit, Record) else len(np.unique(self._whose))

    @property
    def warnings(self) -> list[str]:
        """What the owner should mend in the ids; for the owner alone, and without an id."""
        return [f"some {ALIKE}"] if self.alike else []

    @property
    def _whose(self) -> np.ndarray:
        if self.rows.owners is None:
            hint = "is required with unit person: the column of ids (npz: an array person)"
            raise InputError(f"{ROOT}.records.person_column", None, hint)
        return self.rows.owners

    @property
    def num_features(self) -> int:
        """Features of a record, the intercept included; public."""
        return int(self.rows.features.shape[1])

    def divided(self, fraction: float, identity: Identity, unit: _Unit = RECORD) -> tuple[Rows, Rows]:
        """The records of the n units that train, and of round(fraction n) that are held out, each in the
        order of all of them.

        Which ones follows from the silo's key, n and the fraction, so that it is the same at every start and
        no one else knows it, and from no value. Under `add_remove` it follows, person by person, from the key
        and the own id alone, so that one more person moves no one else; n is about right then, and a part may
        be empty. Otherwise a person is a place in the list of persons, by first records, which a neighbour
        keeps.
        """
        if unit.relation != "add_remove":
            key = identity.sign(b"fedsim holdout 1\n")  # which is signed nowhere else; 1 is this rule
            drawn = np.frombuffer(hashlib.shake_256(key).digest(8 * self.units(unit)), dtype="<u8")
            chosen = np.zeros(len(drawn), dtype=bool)
            chosen[np.argsort(drawn, kind="stable")[: round(fraction * len(drawn))]] = True
        else:
            key = identity.sign(b"fedsim persons 1\n")  # likewise
            drawn_by_id = [hmac.digest(key, token, "sha256") for token in self.tokens]
            chosen = np.array([int.from_bytes(each[:6]) < fraction * 2**48 for each in drawn_by_id], bool)
        mine = chosen if isinstance(unit, Record) else chosen[self._whose]
        return self.rows.of(~mine), self.rows.of(mine)

    def digest(self, identity: Identity) -> str:
        """Keyed digest of the records, 64 hexadecimal digits; only the silo has the key.

        A digest without a key would confirm a guess at the records, and the heads of
        the ledger's chain, which leave the silo, are made of it.
        """
        key = identity.sign(b"fedsim records\n")  # which is signed nowhere else
        found = hmac.new(key, str(self.num_classes).encode(), hashlib.sha256)
        features, target, codes, owners = self.rows
        whose = [] if owners is None else [owners, np.array(self.tokens)]
        groups = [] if codes is None else [codes, np.array(self.groups)]
        for array in (features, target, *whose, *groups):
            found.update(f"{array.dtype.str}{array.shape}".encode())
            found.update(np.ascontiguousarray(array).data)
        return found.hexdigest()


def read_records(config: Config) -> OwnRecords:
    """Read, check and prepare all records of the silo, each by itself. InputError if they cannot be read, a
    value is not what the schema declares, or some are another silo's.
    """
    try:
        source = config.records.open()
        if source.silo_column is not None:
            labels = source.labels(source.silo_column, "scenario.data.path")
            if len(labels.names) > 1:
                hint = "must hold this silo's records alone, and has a column of silos' names"
                raise InputError("scenario.data.path", labels.names[:3], hint)
            require_labels(labels.codes, source.silo_column, "scenario.data.silo_column")
        # every greeting states classes and groups: found in the records, they would tell of one of them
        for field, there in (("classes", source.num_classes), ("groups", source.groups)):
            if there and getattr(config.records, field, there) is None:
                hint = "is public, so declare it: it is not to be read off the records"
                raise InputError(f"scenario.data.{field}", None, hint)
        every = np.arange(source.num_rows)
        rows, _ = prepare(config.records, source.design(every), every, every)
        ids = source.ids()
    except InputError as error:
        field = error.field.replace("scenario.data", f"{ROOT}.records", 1)
        raise InputError(field, error.value, error.hint) from None
    if ids is None:
        return OwnRecords(rows, source.num_classes, groups=source.groups, recoded=source.recoded)
    tokens = tuple(hashlib.sha256(each.encode()).digest() for each in dict.fromkeys(ids))
    rows = rows._replace(owners=numbered(ids))
    return OwnRecords(rows, source.num_classes, tokens, alike(ids), source.groups, source.recoded)


def read_published(config: Config, records: OwnRecords) -> PublicRecords | None:
    """The silo's copy of public records, prepared as its own; None where it has none. InputError if they
    cannot be read, or have other features or classes.
    """
    if config.public is None:
        return None
    from fedsim.data.public import read_public  # where they are named

    unnamed = {name: None for name in ("person_column", "attribute") if hasattr(config.records, name)}
    data = config.records.model_copy(update={"path": config.public, **unnamed})
    found, source, _ = read_public(data, f"{ROOT}.public")
    right = records.num_features, records.num_classes
    if (has := (found.features.shape[1], source.num_classes)) != right:
        raise InputError(f"{ROOT}.public", has, f"{right}: features and classes are those of the records")
    return found


def write_table(config: Config) -> None:
    """Write the table at `records.path` by the command `reader`, unless it is there already. InputError if
    the command cannot be started, or fails; then no table is there.
    """
    place, field, command = getattr(config.records, "path", None), f"{ROOT}.reader", list(config.reader)
    if not command or not isinstance(place, Path) or place.exists():
        return
    remove_drafts(place.parent)  # of a command that was killed, with records
    with atomic_file(place) as draft, open(draft, "xb", opener=partial(os.open, mode=0o600)) as table:
        try:
            done = run(command, stdin=DEVNULL, stdout=table, cwd=place.parent, check=False)
        except OSError as error:
            raise InputError(field, command, f"cannot be started: {error.strerror}") from None
        if done.returncode:
            raise InputError(field, command, f"ended with exit code {done.returncode}, so no table is kept")
