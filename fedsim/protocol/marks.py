"""Where a shuffler's chain of notes stands, as it has signed it; a server relays it to the silos."""

from __future__ import annotations

import json

from fedsim.common.errors import Refused
from fedsim.common.head_file import Head
from fedsim.common.identity import Identity
from fedsim.common.signatures import is_signed, public_key
from fedsim.protocol.messages import Mark

_PURPOSE = b"fedsim mark of a shuffler\n"  # no frame's body begins so


def marked(identity: Identity, newest: Head, start: str) -> Mark:
    """What a shuffler says of its chain.

    Args:
        identity: its own.
        newest: the entry that the chain ends with.
        start: hash of the entry with which its process began, hexadecimal.
    """
    told = {"number": newest.seq, "head": newest.hash.hex(), "start": start}
    return Mark.model_validate({**told, "signature": identity.sign(_body(told)).hex()})


def check_marked(mark: Mark, identity: str) -> None:
    """Refuse a mark that the shuffler of this public key, hexadecimal, has not signed."""
    body, signature = _body(mark.model_dump(exclude={"signature"})), bytes.fromhex(mark.signature)
    if not is_signed(public_key(identity), body, signature):
        raise Refused("the shuffler's mark is not signed by the roster's shuffler")


def check_follows(mark: Mark, of_run: Mark | None, of_shuffler: Mark | None) -> None:
    """Refuse a mark of a shuffler whose notes were set back.

    Args:
        mark: shown now.
        of_run: the newest that the run was shown.
        of_shuffler: the newest that any run was shown; another run's may be ahead while one process lasts.
    """
    for known in (of_run, of_shuffler):
        if known is None:
            continue
        late = known is not of_run and mark.start == known.start
        other = mark.number == known.number and mark.head != known.head
        if other or (mark.number < known.number and not late):
            raise Refused(
                f"the shuffler's notes were set back: they end with entry {mark.number}, or with another "
                f"one, and this silo was shown entry {known.number}; it answers no round through them"
            )


def _body(told: dict[str, object]) -> bytes:
    return _PURPOSE + json.dumps(told, sort_keys=True).encode()
