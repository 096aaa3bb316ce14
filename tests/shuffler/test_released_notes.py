"""What a shuffler has released is on its disk before anything leaves, and stays there."""

import multiprocessing
import os
import random
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest
from support.flips import flipped
from support.refusals import ANY, refused
from support.rosters import RUN
from support.shufflers import Round

from fedsim.common.errors import InputError, Refused
from fedsim.common.head_file import head_path
from fedsim.secagg.reports import NO_START
from fedsim.secagg.shuffling import Request
from shuffler.store import KEPT_REPLIES, FileStore, MemoryStore, Note

IDENTITY = "ab" * 32
_fork = multiprocessing.get_context("fork")


@pytest.fixture
def path(tmp_path):
    FileStore.create(tmp_path / "released.sqlite", IDENTITY)
    return tmp_path / "released.sqlite"


@pytest.fixture(params=["memory", "file"])
def store(request, path):
    if request.param == "memory":
        yield MemoryStore()
    else:
        with closing(FileStore.open(path, IDENTITY)) as made:
            yield made


def test_a_note_is_for_a_run_and_round_and_is_never_replaced(store):
    assert store.find(RUN, 0) is None
    store.note(RUN, 0, "first", b"reply")
    assert store.find(RUN, 0) == Note("first", b"reply")
    assert store.find(RUN, 1) is None
    assert store.find("00" * 32, 0) is None
    with pytest.raises(Refused):
        store.note(RUN, 0, "second", b"other")


def test_the_last_reply_of_a_run_is_kept(store):
    store.note(RUN, 0, "a", b"0")
    store.note("00" * 32, 0, "b", b"1")
    store.note(RUN, 1, "c", b"2")
    assert store.find(RUN, 0) == Note("a", None)
    assert store.find("00" * 32, 0) == Note("b", b"1")
    assert store.find(RUN, 1) == Note("c", b"2")


def test_replies_of_the_newest_runs_alone_are_kept_and_all_notes(path):
    store = FileStore.open(path, IDENTITY)
    runs = [f"{i:064x}" for i in range(2 * KEPT_REPLIES)]
    for run in runs:
        store.note(run, 0, "a", b"reply")
    found = [store.find(run, 0) for run in runs]
    assert found == [Note("a", None)] * KEPT_REPLIES + [Note("a", b"reply")] * KEPT_REPLIES
    store.close()


def test_notes_are_begun_once(path):
    with refused("state", ANY, "never begun anew"):
        FileStore.create(path, IDENTITY)


def test_without_notes_nothing_is_served(tmp_path):
    with refused("state", ANY, "--enrol"):
        FileStore.open(tmp_path / "none.sqlite", IDENTITY)
    assert not (tmp_path / "none.sqlite").exists()


def test_notes_of_another_shuffler_are_not_taken(path):
    with refused("state", ANY, "whose keys are beside them"):
        FileStore.open(path, "00" * 32)


def test_notes_of_another_version_are_refused_with_what_to_do(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 3")
    as_it_was = path.read_bytes()
    with pytest.raises(Refused, match="with the version of fedsim that wrote it, then enrol anew"):
        FileStore.open(path, IDENTITY)
    assert path.read_bytes() == as_it_was


def test_after_a_write_that_failed_nothing_is_served(path):
    store = FileStore.open(path, IDENTITY)
    made = Round(store=store)
    store.connection.execute("PRAGMA query_only = ON")
    with pytest.raises(Refused, match="nothing was released"):
        made.shuffler.shuffle(made.request())
    store.connection.execute("PRAGMA query_only = OFF")
    with pytest.raises(Refused, match="nothing was released"):
        made.shuffler.shuffle(made.request())
    store.close()
    store = FileStore.open(path, IDENTITY)
    assert store.find(RUN, 0) is None
    store.close()


def _filled(path: Path) -> dict[tuple[str, int], Note]:
    """Three processes note 60 releases of 12 runs, and all let the file go; what there is then."""
    made = [(f"{run:064x}", r, f"{run * 100 + r:064x}") for r in range(5) for run in range(12)]
    for part in (made[:20], made[20:40], made[40:]):
        with closing(FileStore.open(path, IDENTITY)) as store:
            for run, index, request in part:
                store.note(run, index, request, f"reply {run} {index}".encode() * 20)
            noted = {(run, index): store.find(run, index) for run, index, _ in made}
    assert sum(note.reply is not None for note in noted.values()) == KEPT_REPLIES
    return noted


def _whole(path: Path, made: dict[tuple[str, int], Note]) -> bool:
    """Whether it opens, and then with every release and every reply; False if it is refused."""
    try:
        store = FileStore.open(path, IDENTITY)
    except (Refused, InputError):
        return False
    with closing(store):
        assert {place: store.find(*place) for place in made} == made
    return True


@pytest.mark.parametrize("count", [50, pytest.param(500, marks=pytest.mark.slow)])
def test_a_turned_bit_is_refused_or_changes_nothing(path, count):
    made = _filled(path)
    found = [_whole(path, made) for _ in flipped([path, head_path(path)], count)]
    assert len(found) == count
    assert count // 4 < found.count(False) < count
    assert _whole(path, made)


@pytest.mark.parametrize("count", [50, pytest.param(400, marks=pytest.mark.slow)])
def test_every_other_damage_is_refused_or_forgets_nothing(path, count):
    """Truncations; each file missing, empty or older."""
    made, files = _filled(path), (path, head_path(path))
    saved = [file.read_bytes() for file in files]
    rng = random.Random(0)

    def tried(*contents: bytes | None) -> bool:
        for file, content in zip(files, contents, strict=True):
            file.unlink(missing_ok=True)
            if content is not None:
                file.write_bytes(content)
        return _whole(path, made)

    assert tried(*saved)
    for which in [0, 1] * (count // 8):
        cut = list(saved)
        cut[which] = saved[which][: rng.randrange(len(saved[which]))]
        assert not tried(*cut) or cut[which][:4200] == saved[which][:4200]  # a slot of the head is a page
    for lost in (None, b""):
        assert not tried(saved[0], lost)
        assert not tried(lost, saved[1])
    assert tried(*saved)
    later = [file.read_bytes() for file in files]  # one start more
    store = FileStore.open(path, IDENTITY)
    store.note(RUN, 0, "a", b"reply")
    store.close()
    newest = [file.read_bytes() for file in files]
    assert not tried(later[0], newest[1])
    assert not tried(newest[0], saved[1])


class AnyStart(FileStore):
    """Begins every process with the same entry, as if it had no start."""

    @classmethod
    def open(cls, path: Path, identity: str) -> Self:
        made = super().open(path, identity)
        made.start = NO_START
        return made


@pytest.mark.parametrize("kind", [AnyStart, FileStore])
def test_notes_that_are_set_back_release_no_round_a_second_time(path, kind):
    """The server keeps all reports, and asks without one silo; both files are those of before the release."""
    files, victim = (path, head_path(path)), 4
    store = kind.open(path, IDENTITY)
    old = [file.read_bytes() for file in files]
    made = Round(store=store)
    first = made.release()
    store.close()
    for file, content in zip(files, old, strict=True):
        file.write_bytes(content)
    made.shuffler.store = store = kind.open(path, IDENTITY)
    less = made.request([0, 1, 2, 3])
    if kind is AnyStart:
        assert (made.total(first) - made.total(made.release(less)) == made.numbers[victim]).all()
    else:
        with pytest.raises(Refused, match="another process of the shuffler"):
            made.shuffler.shuffle(less)
        told = replace(less, context=replace(less.context, start=store.start))  # the server's word for it
        with pytest.raises(Refused, match="0 reports count"):
            made.shuffler.shuffle(told)
        with pytest.raises(Refused, match="an older copy"):
            made.shuffler.mark(first.mark.head)
    store.close()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _before_the_note(store: FileStore) -> None:
    store.note = lambda *_: _die()


def _within_the_note(store: FileStore) -> None:
    """The round's row is written, and not committed."""
    store.connection.set_authorizer(
        lambda action, table, *_: (table == "bodies" and _die()) or sqlite3.SQLITE_OK
    )


def _after_the_note(store: FileStore) -> None:
    real = store.note

    def noted(*given: object) -> None:
        real(*given)
        _die()

    store.note = noted


def _killed(made: Round, path: Path, at: Callable[[FileStore], None] | None) -> tuple[Request, bytes | None]:
    """What was asked of a shuffler's process that was killed there, and what left it."""
    ours, theirs = _fork.Pipe(duplex=False)

    def serve() -> None:
        store = FileStore.open(path, IDENTITY)
        if at is not None:
            at(store)
        theirs.send(made.again(store))
        theirs.send_bytes(made.shuffler.shuffle(made.request()))
        _die()

    process = _fork.Process(target=serve)
    process.start()
    theirs.close()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    request = ours.recv()
    try:
        return request, ours.recv_bytes()
    except EOFError:
        return request, None


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # forked beside threads of numpy's
@pytest.mark.parametrize("at", [_before_the_note, _within_the_note])
def test_killed_before_the_note_nothing_has_left_and_its_reports_are_for_no_other_process(path, at):
    """A shuffler whose notes were set back looks the same from within: its reports may have been released."""
    made = Round()
    request, left = _killed(made, path, at)
    assert left is None
    store = FileStore.open(path, IDENTITY)
    made.shuffler.store = store
    with pytest.raises(Refused, match="another process of the shuffler"):
        made.shuffler.shuffle(request)
    assert store.find(RUN, 0) is None
    store.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("at", [_after_the_note, None], ids=["after the note", "after the release"])
def test_killed_after_the_note_only_that_request_is_ever_answered(path, at):
    made = Round()
    request, left = _killed(made, path, at)
    assert (left is None) == (at is not None)
    _check_released_once(made, path, request, left)


def _check_released_once(made: Round, path: Path, request: Request, left: bytes | None) -> None:
    """A shuffler that starts on these notes gives that request's reply, the same bytes, and no other."""
    store = FileStore.open(path, IDENTITY)
    made.shuffler.store = store
    again = made.shuffler.shuffle(request)
    assert left in (None, again)
    for other in (
        replace(request, reports=request.reports[:3]),
        replace(request, reports=request.reports[::-1]),
    ):
        with pytest.raises(Refused, match="released to another request"):
            made.shuffler.shuffle(other)
    store.close()
