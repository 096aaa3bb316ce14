"""What can be checked of a silo's machine, enrolled or not: a line for each, and the verdict."""

from __future__ import annotations

import os
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple

import psutil

from fedsim.common.errors import InputError, Refused
from fedsim.common.notices import DAYS
from silos.front.config import load_config
from silos.front.enrolled import check_modes
from silos.front.ledger_time import clocks
from silos.vault.book import read

REMOTE = ("nfs", "cifs", "smb", "9p", "ceph", "gluster", "lustre", "afs", "fuse.", "beegfs", "gpfs")
"""Types of file systems, or how they begin, where two machines may hold one file, or a lock may not hold."""
_FREE = 1e9  # bytes
_SKEW = 30.0  # seconds
_WITHIN = 10.0  # seconds


class Check(NamedTuple):
    """What was looked at, whether it is as it must be, and what was found."""

    what: str
    good: bool
    found: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.good else 'FAIL'}  {self.what:<14} {self.found}"


def of_daemon(file: Path) -> Iterator[Check]:
    """The daemon's side, as its user: configuration, owners and modes of files, disk, last day, ledger."""
    try:
        config = load_config(file)
    except InputError as error:
        yield Check("silo.yaml", False, str(error))
        return
    found = f"silo {config.name}, records {config.records.name}, unit {config.unit.name}"
    yield Check("silo.yaml", True, found)
    for what, path in {"config": file, **config.records.files}.items():
        if path.exists() or not config.reader:
            yield _own(f"mode {what}", path)
    if config.state.exists():
        try:
            check_modes(config.state)
            yield _own("mode state", config.state)
        except InputError as error:
            yield Check("mode state", False, str(error))
    yield _disk(next(place for place in (config.state, *config.state.parents) if place.exists()))
    at = getattr(config.listen, "socket", None)
    if at is not None:
        able = os.access(at.parent, os.W_OK)
        hint = "writable" if able else "must be a folder that the daemon's user may write to"
        yield Check("socket", able, f"{at.parent}: {hint}")
    last, today = config.policy.lifetime.expires, datetime.now(UTC).date()
    yield Check("last day", last >= today, f"{last}, in {(last - today).days:,} days")
    if config.ledger.exists():
        yield _ledger(config.ledger)


def of_node(superlink: str, roots: Path, key: Path) -> Iterator[Check]:
    """The node's side, as its user: key, authority, TLS to the SuperLink, its certificate, the clock."""
    from silos.shim.__main__ import private_key

    yield _own("mode key", key)
    try:
        private_key(key)
        authority = ssl.create_default_context(cafile=str(roots))
    except InputError as error:
        yield Check("node's key", False, str(error))
        return
    except (OSError, ssl.SSLError) as error:
        yield Check("ca.crt", False, f"{roots}: a certificate in PEM ({type(error).__name__})")
        return
    for each in authority.get_ca_certs():
        yield _dated("authority", str(each["notAfter"]))
    host, _, port = superlink.rpartition(":")
    try:
        with (
            closing(socket.create_connection((host.strip("[]"), int(port)), _WITHIN)) as plain,
            authority.wrap_socket(plain, server_hostname=host.strip("[]")) as line,
        ):
            yield Check("network", True, f"{superlink} answers, {line.version()}, by this authority")
            yield _dated("certificate", str((line.getpeercert() or {}).get("notAfter")))
            line.sendall(f"HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            yield _clock(line.recv(65536).decode("latin-1"))
    except (OSError, ValueError) as error:  # among them a certificate that does not fit
        why = getattr(error, "verify_message", None) or str(error) or type(error).__name__
        yield Check("network", False, f"{superlink}: {why}")


def _own(what: str, path: Path) -> Check:
    """Whether a file is this user's, and nobody else may read or change it; or another's that this user can
    only read, and that is not for all, as an engine of containers mounts it.
    """
    try:
        found = path.stat()
    except OSError as error:
        return Check(what, False, f"{path}: {error.strerror}")
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid():
        if not mode & 0o007 and os.access(path, os.R_OK) and not os.access(path, os.W_OK):
            return Check(what, True, f"{path}: {mode:04o}, another user's, and not to be written by this one")
        return Check(what, False, f"{path}: is another user's; chown it to the one who runs this")
    return Check(what, not mode & 0o077, f"{path}: {mode:04o}{'; chmod go= it' if mode & 0o077 else ''}")


def _disk(place: Path) -> Check:
    """Whether a ledger may be kept there: on this machine, not in memory, with room."""
    mounts = [m for m in psutil.disk_partitions(all=True) if place.resolve().is_relative_to(m.mountpoint)]
    kind = max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else "unknown"
    free = psutil.disk_usage(str(place)).free
    said = f"{place}: {kind}, {free / 1e9:,.1f} GB free"
    if kind.startswith(REMOTE) or kind in ("tmpfs", "ramfs"):
        return Check("disk", False, f"{said}; state must be on a local disk")
    return Check("disk", free >= _FREE, said if free >= _FREE else f"{said}; at least 1 GB is needed")


def _ledger(place: Path) -> Check:
    """Whether it is whole, and its time is near this machine's clock."""
    try:
        said = clocks(read(place))
    except (InputError, Refused) as error:
        said = [str(error)]
    return Check("ledger", not said, "; ".join(said) or "whole, and its time near this machine's clock")


def _dated(what: str, text: str) -> Check:
    try:
        ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC)
    except ValueError:
        return Check(what, False, f"its end {text!r} cannot be read")
    days = (ends - datetime.now(UTC)).days
    return Check(what, days >= DAYS, f"valid until {ends:%Y-%m-%d}, {days:,} days")


def _clock(answer: str) -> Check:
    dates = [line[5:].strip() for line in answer.split("\r\n") if line.lower().startswith("date:")]
    try:
        away = (datetime.now(UTC) - parsedate_to_datetime(dates[0])).total_seconds()
    except (IndexError, ValueError):
        return Check("clock", True, "not compared: the SuperLink's answer has no date")
    return Check("clock", abs(away) <= _SKEW, f"{away:+.0f} s from the SuperLink's")
