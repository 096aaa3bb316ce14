"""Downloads: a published file is fetched once, and checked whenever it is used.

A download goes to a draft beside its place and is moved there when it holds what its checksum says, so that
nothing half-written or changed is ever read. Only http and https are spoken, and https stays https.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.client
import lzma
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from fedsim.common.durable import atomic_file
from fedsim.common.errors import InputError
from fedsim.common.files import HOW
from fedsim.data.dataset import Download

FIELD = "scenario.data"
_PATIENCE = 30.0  # seconds without a byte
_BLOCK = 1 << 18
_SCHEMES = ("http", "https")
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
"""A progress display: opened with a title and the total bytes, if known; called with each block's bytes."""


SHOW: ContextVar[Show] = ContextVar("SHOW", default=lambda title, total: nullcontext(lambda count: None))


def obtain(wanted: Sequence[Download]) -> None:
    """Download every file that is missing, and check that each is the published one; InputError if not."""
    for each in wanted:
        if not each.path.exists():
            _fetch([other for other in wanted if other.urls == each.urls and not other.path.exists()])
        _check(each.path, each)


def _check(path: Path, wanted: Download) -> None:
    """Check what stands at `path`, which is the wanted file's place or a draft of it."""
    length, found = path.stat().st_size, ""
    if wanted.size is not None and length != wanted.size:
        found = f"it has {length:,} bytes, not {wanted.size:,}"
    elif wanted.sha256 is not None and (digest := content(path, FIELD, wanted.path)) != wanted.sha256:
        found = f"SHA-256 of its content is {digest}, not {wanted.sha256}"
    if found:
        hint = f"does not hold what was published: {found}; remove it to have it downloaded, or {HOW}"
        raise InputError(FIELD, str(wanted.path), hint)


def _fetch(wanted: Sequence[Download]) -> None:
    first = wanted[0]
    try:
        first.path.parent.mkdir(parents=True, exist_ok=True)
        if first.member is None:
            with atomic_file(first.path) as draft:
                _download(first, draft)
                _check(draft, first)
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


def _download(wanted: Download, draft: Path) -> None:
    """Download from the first address that answers."""
    reasons = []
    for url in wanted.urls:
        try:
            return _read(url, draft)
        except (_Unreachable, http.client.HTTPException, ValueError) as error:
            reasons.append(f"{url}: {error or type(error).__name__}")
    member = f", or the archive {wanted.archive.name} beside it" if wanted.member else ""
    hint = f"is not there and cannot be downloaded ({'; '.join(reasons)}): put the file there{member}"
    raise InputError(FIELD, str(wanted.path), f"{hint}, or {HOW}")


class _Unreachable(Exception):
    pass


class _Redirects(HTTPRedirectHandler):
    """Follows http to both, https to https alone; urllib itself would follow both to ftp too."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        secure = urlsplit(req.full_url).scheme == "https"
        if urlsplit(newurl).scheme not in (("https",) if secure else _SCHEMES):
            raise HTTPError(req.full_url, code, f"redirection to {newurl} is not followed", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _read(url: str, draft: Path) -> None:
    if urlsplit(url).scheme not in _SCHEMES:
        raise _Unreachable("is neither http nor https")
    try:
        request = Request(url, headers={"User-Agent": "fedsim"})
        reply = build_opener(_Redirects).open(request, timeout=_PATIENCE)
    except OSError as error:  # also what a server refuses with
        raise _Unreachable(str(error)) from None
    with reply, draft.open("wb") as file:
        length = reply.headers.get("Content-Length", "")
        total = int(length) if length.isdigit() else None
        with SHOW.get()(url, total) as advance:
            while block := _block(reply):
                file.write(block)
                advance(len(block))
                if file.tell() > MOST:
                    raise _Unreachable(f"sends more than {MOST:,} bytes, the most allowed")
        if total is not None and file.tell() < total:
            raise _Unreachable(f"ended after {file.tell():,} of {total:,} bytes")


def _block(reply: IO[bytes]) -> bytes:
    """Read the next block; network errors are kept apart from disk errors."""
    try:
        return reply.read(_BLOCK)
    except OSError as error:
        raise _Unreachable(str(error)) from None


def _unpack(archive: Path, wanted: Sequence[Download]) -> None:
    asked = wanted[0].archive_sha256
    if asked is not None and (found := content(archive, FIELD, unpack=False)) != asked:
        hint = f"is not the archive that was published: SHA-256 {found}, not {asked}"
        raise InputError(FIELD, str(archive), f"{hint}; remove it to have it downloaded, or {HOW}")
    try:
        with _opened(archive) as member:
            for each in wanted:
                with atomic_file(each.path) as draft:
                    _copy(member(each.member or ""), each, draft)
                    _check(draft, each)
    except _BROKEN as error:
        raise InputError(FIELD, str(archive), f"is not a whole archive with these files ({error})") from None


def _copy(inside: IO[bytes] | None, wanted: Download, draft: Path) -> None:
    """Copy a member out; limited by the bytes that come out, not by the size that the archive states."""
    if inside is None:  # a folder of a tar file
        raise KeyError(wanted.member)
    most = MOST if wanted.size is None else wanted.size
    with inside, draft.open("wb") as file:
        try:
            file.writelines(_blocks(inside.read, most))
        except _TooLong:
            inside_of = f"{wanted.member} in {wanted.archive.name}"
            hint = f"{inside_of} unpacks to more than {most:,} bytes, the most allowed"
            raise InputError(FIELD, str(wanted.path), hint) from None


@contextmanager
def _opened(archive: Path) -> Iterator[Callable[[str], IO[bytes] | None]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            yield file.open
    else:
        with tarfile.open(archive) as tar:
            yield tar.extractfile


MOST = 4 << 30  # the most bytes that one file may hold: a small archive may unpack to more than any disk


class _TooLong(Exception):
    """The content exceeds its limit."""


def _blocks(read: Callable[[int], bytes], most: float) -> Iterator[bytes]:
    """Yield a file's blocks, given its `read(size)`; raise `_TooLong` after `most` bytes."""
    seen = 0
    while block := read(1 << 20):
        seen += len(block)
        if seen > most:
            raise _TooLong
        yield block


def content(path: Path, field: str, place: Path | None = None, unpack: bool = True) -> str:
    """SHA-256 of a file's content, 64 hexadecimal digits; of a .gz file the uncompressed content's, unless
    `unpack` is false. InputError on `field`, of the file's own `place`: it is unreadable, no whole gzip file,
    or holds more than `MOST` bytes.
    """
    place = place or path
    try:
        found = path.stat()
        return _read_digest(path, unpack and place.suffix == ".gz", found.st_mtime_ns, found.st_size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(field, str(place), f"is damaged, or cut short? ({error})") from None
    except _TooLong:
        hint = f"unpacks to more than {MOST:,} bytes, the most allowed"
        raise InputError(field, str(place), hint) from None
    except OSError as error:
        raise InputError(field, str(place), f"cannot be read ({error.strerror})") from None


@lru_cache(maxsize=1024)  # read once a process, and again after a change
def _read_digest(path: Path, unpack: bool, changed: int, size: int) -> str:
    digest = hashlib.sha256()
    with gzip.open(path) if unpack else path.open("rb") as file:
        for block in _blocks(file.read, MOST if unpack else inf):
            digest.update(block)
    return digest.hexdigest()
