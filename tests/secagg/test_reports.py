"""Reports and envelopes: they open for whom and for what they were sealed, and for nothing else."""

import stat
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.helpers import FALSE_ALARM
from support.refusals import ANY, refused
from support.rosters import Parties, counts, identity
from support.uniform import narrow_split, slightly_odd_split, worst_byte

from fedsim.common.errors import InputError, Refused
from fedsim.secagg.envelopes import KEY_FILE, OVERHEAD, PUBLIC_FILE, EnvelopeKey, seal
from fedsim.secagg.reports import (
    Form,
    ReportContext,
    add,
    open_inner,
    open_report,
    open_share,
    seal_report,
    split,
    total,
)

PARTIES = Parties(5)
OCCASION = PARTIES.context()
NUMBERS = counts(np.random.default_rng(0), 5)
MESSAGES = Form("messages", 4, (0.0, 0.0))


def opened(report: bytes, context: ReportContext = OCCASION, key: EnvelopeKey = PARTIES.shuffler) -> tuple:
    return open_report(report, context, PARTIES.roster, key)


def test_both_parts_together_are_what_was_sealed():
    position, inner, share = opened(PARTIES.report(3, NUMBERS[3]))
    owner, own = open_share(inner, OCCASION, PARTIES.roster, PARTIES.server)
    assert owner == position == 3
    assert (total(own, share) == NUMBERS[3].ravel()).all()


def test_a_whole_message_is_in_the_servers_envelope_alone():
    context = PARTIES.context(form=MESSAGES)
    message = np.random.default_rng(0).normal(size=(2, 4))
    _, inner, share = opened(PARTIES.report(1, message, context), context)
    assert share.size == 0
    assert (np.frombuffer(open_inner(inner, context, PARTIES.server), "<f8") == message.ravel()).all()


@pytest.mark.parametrize(
    "other",
    [
        replace(OCCASION, run="00" * 32),
        replace(OCCASION, round=1),
        replace(OCCASION, roster="00" * 32),
        replace(OCCASION, form=Form("shares", 4, (0.0, 1.0))),
        replace(OCCASION, form=Form("shares", 8, (0.0,))),
    ],
    ids=["run", "round", "roster", "noise", "shape"],
)
def test_a_report_is_of_one_occasion(other):
    report = PARTIES.report(0, NUMBERS[0])
    inner = opened(report).inner
    assert other.form.report_bytes == len(report)  # or it would be refused by its size
    with pytest.raises(Refused, match="is not for this"):
        opened(report, other)
    with pytest.raises(Refused, match="is not for this"):
        open_inner(inner, other, PARTIES.server)


def test_neither_the_server_nor_a_stranger_opens_a_report():
    report = PARTIES.report(0, NUMBERS[0])
    for key in (PARTIES.server, EnvelopeKey.draw()):
        with pytest.raises(Refused):
            opened(report, key=key)


def test_the_shuffler_does_not_open_the_servers_envelope():
    inner = opened(PARTIES.report(0, NUMBERS[0])).inner
    for role in ("server", "shuffler"):
        with pytest.raises(Refused):
            PARTIES.shuffler.open(inner, OCCASION.info(role))


def test_roles_are_apart():
    """What was sealed to a key for one role does not open for another, even with that key."""
    sealed = seal(b"x", PARTIES.server.public, OCCASION.info("server"))
    with pytest.raises(Refused):
        PARTIES.server.open(sealed, OCCASION.info("shuffler"))


def test_a_silo_signs_for_itself_alone():
    stranger = seal_report(NUMBERS[0], OCCASION, PARTIES.roster, 0, identity().sign)
    other = seal_report(NUMBERS[0], OCCASION, PARTIES.roster, 0, PARTIES.silos["s001"].sign)
    for report in (stranger, other):
        with pytest.raises(Refused, match="has not signed"):
            opened(report)


@pytest.mark.parametrize("position", [5, 2**32 - 1])
def test_a_position_outside_the_roster_is_refused(position):
    report = seal_report(NUMBERS[0], OCCASION, PARTIES.roster, position, PARTIES.silos["s000"].sign)
    with pytest.raises(Refused, match="no silo of the roster"):
        opened(report)


@pytest.mark.parametrize("part", ["position", "inner", "share"])
def test_a_signature_covers_every_part(part):
    """A party that can open and seal again, as the shuffler can, cannot change a report unnoticed."""
    content = bytearray(PARTIES.shuffler.open(PARTIES.report(0, NUMBERS[0]), OCCASION.info("shuffler")))
    content[{"position": 0, "inner": 4 + 64 + 5, "share": -1}[part]] ^= 1
    forged = seal(bytes(content), PARTIES.shuffler.public, OCCASION.info("shuffler"))
    with pytest.raises(Refused, match="has not signed"):
        opened(forged)


def test_equal_numbers_make_other_bytes_each_time():
    made = {PARTIES.report(0, NUMBERS[0]) for _ in range(10)}
    assert len(made) == 10


@pytest.mark.parametrize(
    "numbers", [NUMBERS[0].astype(float), NUMBERS[0, 0], NUMBERS[0, :1], NUMBERS[0].astype(np.uint64)]
)
def test_numbers_of_another_kind_are_not_sealed(numbers):
    with refused("numbers", ANY, "int64(2, 4)"):
        PARTIES.report(0, numbers)


def test_nothing_is_sealed_for_a_roster_that_is_not_pinned():
    with refused("roster", ANY, "the roster that is pinned"):
        PARTIES.report(0, NUMBERS[0], replace(OCCASION, roster="00" * 32))


@pytest.mark.parametrize(
    ("transport", "dimension", "scales", "field"),
    [
        ("bits", 4, (0.0,), "transport"),
        ("shares", 0, (0.0,), "dimension"),
        ("shares", 2**31, (0.0,), "dimension"),
        ("shares", 4, (), "scales"),
        ("shares", 4, (0.0,) * 1001, "scales"),
        ("shares", 4, (-1.0,), "scales"),
        ("shares", 4, (float("nan"),), "scales"),
        ("messages", 4, (1.0,), "scales"),
    ],
)
def test_a_form_that_is_none(transport, dimension, scales, field):
    with pytest.raises(InputError, match=f"^{field}"):
        Form(transport, dimension, scales)


def test_a_key_is_a_file_of_its_owners_alone(tmp_path):
    made = EnvelopeKey.create(tmp_path)
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    assert (tmp_path / PUBLIC_FILE).read_text().strip() == made.public
    assert EnvelopeKey.load(tmp_path).open(seal(b"x", made.public, b"i"), b"i") == b"x"
    assert len(seal(b"x", made.public, b"i")) == 1 + OVERHEAD
    with refused("envelopes", ANY, "never replaced"):
        EnvelopeKey.create(tmp_path)
    (tmp_path / KEY_FILE).chmod(0o640)
    with refused("envelopes", ANY, "chmod 600"):
        EnvelopeKey.load(tmp_path)


@pytest.mark.parametrize("text", ["", "ab", "zz" * 32])
def test_a_key_that_is_none_is_not_shown(tmp_path, text):
    (tmp_path / KEY_FILE).write_text(text)
    (tmp_path / KEY_FILE).chmod(0o600)
    with pytest.raises(InputError, match=f"{KEY_FILE}': 64 hexadecimal digits"):
        EnvelopeKey.load(tmp_path)


def test_a_public_key_of_small_order_is_refused():
    with refused("key", ANY, "an X25519 public key"):
        seal(b"x", "00" * 32, b"i")


# Two shares of an integer: each alone is uniform, both together are exact.

SHARED = 40_000


@pytest.mark.parametrize("value", [0, 1, -1, 12345, -(2**63), 2**63 - 1])
def test_each_share_alone_is_uniform_whatever_it_hides(value):
    for share in split(np.full(SHARED, value, np.int64)):
        assert worst_byte(share) > FALSE_ALARM


@pytest.mark.parametrize("splitter", [narrow_split, slightly_odd_split])
def test_that_test_rejects_a_splitter_that_is_not(splitter):
    for share in splitter(np.full(SHARED, 12345, np.int64)):
        assert worst_byte(share) < FALSE_ALARM


def test_no_two_splits_share_words():
    counts = np.zeros(1000, np.int64)
    assert len(np.unique(np.concatenate([split(counts)[0] for _ in range(5)]))) == 5000


@given(arrays(np.int64, (7, 3), elements=st.integers(-(2**60), 2**60 - 1)))
def test_sums_are_exact(counts):
    for_server, for_shuffler = zip(*(split(row) for row in counts), strict=True)
    assert (total(add(for_server), add(for_shuffler)) == counts.sum(axis=0)).all()


def test_sums_wrap_at_two_to_the_64():
    counts = np.array([[2**63 - 1], [1], [-(2**63)], [-1]], np.int64)
    a, b = split(counts)
    assert total(add(a[:2]), add(b[:2])) == [-(2**63)]
    assert total(add(a[2:]), add(b[2:])) == [2**63 - 1]
    assert total(add(a), add(b)) == [-1]


def test_shares_have_the_shape_of_what_they_split():
    for share in split(np.arange(24).reshape(2, 3, 4)[:, ::2]):
        assert (share.shape, share.dtype) == ((2, 2, 4), np.uint64)
