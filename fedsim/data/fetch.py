"""Files that a data set can have from where they were published: downloaded once, checked always.

A download goes to a draft beside its place and is moved there when it holds what its checksum says, so that
nothing half-written or changed is ever read. Only http and https are spoken, and https stays https.
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
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from fedsim.common.errors import InputError
from fedsim.common.files import whole_file
from fedsim.data.content import MOST, TooLongError, blocks, content, packed
from fedsim.data.folder import HOW

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
        size: its bytes, where they are known.
    """

    path: Path
    urls: tuple[str, ...]
    sha256: str | None
    member: str | None = None
    archive_sha256: str | None = None
    size: int | None = None

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
    """Check what stands at `path`, which is the wanted file's place or a draft of it."""
    if wanted.size is not None and (length := path.stat().st_size) != wanted.size:
        raise _another(wanted, f"it has {length:,} bytes, not {wanted.size:,}")
    if wanted.sha256 is not None and (found := _content(path, wanted)) != wanted.sha256:
        raise _another(wanted, f"SHA-256 of its content is {found}, not {wanted.sha256}")


def _another(wanted: Wanted, found: str) -> InputError:
    expected = f"does not hold what was published: {found}; remove it to have it downloaded, or {HOW}"
    return InputError(FIELD, str(wanted.path), expected)


def _content(path: Path, wanted: Wanted) -> str:
    try:
        return content(path, FIELD)
    except InputError as error:  # of the draft, which nobody knows
        raise InputError(FIELD, str(wanted.path), error.expected) from None


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
                    _copy(member, each, draft)
                    _check(draft, each)
    except _BROKEN as error:
        raise InputError(FIELD, str(archive), f"is not a whole archive with these files ({error})") from None


def _copy(member: Callable[[str], IO[bytes]], wanted: Wanted, draft: Path) -> None:
    """Not by what the archive says that a member has: by what comes out of it."""
    most = MOST if wanted.size is None else wanted.size
    with member(wanted.member or "") as inside, draft.open("wb") as file:
        try:
            file.writelines(blocks(inside.read, most))
        except TooLongError:
            inside_of = f"{wanted.member} in {wanted.archive.name}"
            expected = f"{inside_of} unpacks to more than {most:,} bytes, the most allowed"
            raise InputError(FIELD, str(wanted.path), expected) from None


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
