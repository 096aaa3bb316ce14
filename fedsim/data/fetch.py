"""Files that a data set can have from where they were published: downloaded once, checked always.

A download goes to a draft beside its place and is moved there when it holds what its checksum says, so that
nothing half-written or changed is ever read. Only http and https are spoken.
"""

from __future__ import annotations

import errno
import gzip
import http.client
import lzma
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfileobj
from typing import IO
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from fedsim.common.errors import InputError
from fedsim.common.files import whole_file
from fedsim.data.content import content, packed
from fedsim.data.folder import HOW

FIELD = "scenario.data"
_PATIENCE = 30.0  # seconds without a byte
_BLOCK = 1 << 18
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    KeyError,
    RuntimeError,  # a member with a password, or compressed in a way of its own
)

Show = Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]]
"""Opened with what is downloaded and its bytes, if known; told of each block's bytes."""


@contextmanager
def _silently(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    yield lambda count: None


SHOW: ContextVar[Show] = ContextVar("SHOW", default=_silently)


@dataclass(frozen=True)
class Wanted:
    """A file, where it is published, and what must be in it.

    Args:
        path: where it is kept.
        urls: of the file, or of the archive that it is in; tried in this order.
        sha256: of its content (`fedsim.data.content`); None where only the archive's is known.
        member: its name in the archive, a zip or a tar file.
        archive_sha256: of the archive's bytes.
    """

    path: Path
    urls: tuple[str, ...]
    sha256: str | None
    member: str | None = None
    archive_sha256: str | None = None

    @property
    def archive(self) -> Path:
        """Where the archive is looked for before it is downloaded: beside the file's place."""
        name = Path(urlsplit(self.urls[0]).path).name
        return self.path.with_name(name if name.strip(".") else "archive")


def obtain(wanted: Sequence[Wanted]) -> None:
    """See that every file is at its place and is the one that was published.

    Raises:
        InputError: one cannot be had, says which to put where; or its content is another.
    """
    for each in wanted:
        if not each.path.exists():
            together = [other for other in wanted if other.urls == each.urls and not other.path.exists()]
            _fetch(together)
        _check(each.path, each)


def _check(path: Path, wanted: Wanted) -> None:
    if wanted.sha256 is not None and (found := content(path, FIELD)) != wanted.sha256:
        expected = f"does not hold what was published: SHA-256 of its content is {found}, not {wanted.sha256}"
        raise InputError(FIELD, str(wanted.path), f"{expected}; remove it to have it downloaded, or {HOW}")


def _fetch(wanted: Sequence[Wanted]) -> None:
    first = wanted[0]
    try:
        first.path.parent.mkdir(parents=True, exist_ok=True)
        if first.member is None:
            _file(first)
        elif first.archive.exists():
            _unpack(first.archive, wanted)
        else:
            with tempfile.TemporaryDirectory(prefix=".writing-", dir=first.path.parent) as folder:
                archive = Path(folder) / first.archive.name
                _download(first, archive)
                _unpack(archive, wanted)
    except OSError as error:
        if error.errno in _FULL:  # the command line says so of any file
            raise
        raise InputError(FIELD, str(first.path), f"cannot be written ({error.strerror}); {HOW}") from None


def _file(wanted: Wanted) -> None:
    with whole_file(wanted.path) as draft:
        _download(wanted, draft)
        _check(draft, wanted)


def _download(wanted: Wanted, draft: Path) -> None:
    """From the first place that has it."""
    reasons = []
    for url in wanted.urls:
        try:
            return _read(url, draft)
        except (_Unreachable, http.client.HTTPException, ValueError) as error:
            reasons.append(f"{url}: {error or type(error).__name__}")
    member = f", or the archive {wanted.archive.name} beside it" if wanted.member else ""
    expected = f"is not there and cannot be downloaded ({'; '.join(reasons)}): put the file there{member}"
    raise InputError(FIELD, str(wanted.path), f"{expected}, or {HOW}")


class _Unreachable(Exception):
    pass


def _read(url: str, draft: Path) -> None:
    if urlsplit(url).scheme not in ("http", "https"):
        raise _Unreachable("is neither http nor https")
    try:
        reply = urlopen(Request(url, headers={"User-Agent": "fedsim"}), timeout=_PATIENCE)
    except OSError as error:  # also what a server refuses with
        raise _Unreachable(str(error)) from None
    with reply, draft.open("wb") as file:
        length = reply.headers.get("Content-Length", "")
        total = int(length) if length.isdigit() else None
        with SHOW.get()(url, total) as advance:
            while block := _block(reply):
                file.write(block)
                advance(len(block))
        if total is not None and file.tell() < total:
            raise _Unreachable(f"ended after {file.tell():,} of {total:,} bytes")


def _block(reply: IO[bytes]) -> bytes:
    """The next bytes; errors of the network are told from those of the disk."""
    try:
        return reply.read(_BLOCK)
    except OSError as error:
        raise _Unreachable(str(error)) from None


def _unpack(archive: Path, wanted: Sequence[Wanted]) -> None:
    asked = wanted[0].archive_sha256
    if asked is not None and (found := packed(archive, FIELD)) != asked:
        expected = f"is not the archive that was published: SHA-256 {found}, not {asked}"
        raise InputError(FIELD, str(archive), f"{expected}; remove it to have it downloaded, or {HOW}")
    try:
        with _opened(archive) as member:
            for each in wanted:
                with whole_file(each.path) as draft:
                    with member(each.member or "") as inside, draft.open("wb") as file:
                        copyfileobj(inside, file)
                    _check(draft, each)
    except _BROKEN as error:
        raise InputError(FIELD, str(archive), f"is not a whole archive with these files ({error})") from None


@contextmanager
def _opened(archive: Path) -> Iterator[Callable[[str], IO[bytes]]]:
    """What opens a member of a zip or tar file."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            yield file.open
        return
    with tarfile.open(archive) as tar:

        def member(name: str) -> IO[bytes]:
            found = tar.extractfile(name)
            if found is None:
                raise KeyError(name)
            return found

        yield member
