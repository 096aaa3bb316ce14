"""How a frame travels in a Flower message; the silo's node and the server's grid both use this.

A message of type `MESSAGE_TYPE` holds one record `RECORD`: bytes `RECORD` of a configuration, or, for a long
frame, an array `RECORD`. Nothing else in it is read. An error has one of the codes and texts below, never the
text of an exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # this module loads without Flower
    from flwr.app import ArrayRecord, ConfigRecord

MESSAGE_TYPE = "train.frame"
RECORD = "frame"
STYPE = "fedsim.frame"  # type of the array's serialised bytes: the frame as it is

AWAY, UNREADABLE = 101, 102
REASONS = {AWAY: "the silo's daemon does not answer", UNREADABLE: "not a message that this silo takes"}

ONE_PIECE = 2**21  # frames of at most this many bytes travel in one piece; longer ones are cut
MAX_FRAME = 256 * 2**20  # largest size of a frame in bytes


def record_of(frame: bytes) -> ArrayRecord | ConfigRecord:
    """The record that carries a frame; a short one goes in one piece, since each piece is a request."""
    from flwr.app import Array, ArrayRecord, ConfigRecord

    if len(frame) <= ONE_PIECE:
        return ConfigRecord({RECORD: frame})
    return ArrayRecord({RECORD: Array("uint8", (len(frame),), STYPE, frame)})
