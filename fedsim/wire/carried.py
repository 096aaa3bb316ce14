"""How a frame travels in a message of Flower's: both ends agree on these, and neither needs Flower for it.

A message of type `MESSAGE_TYPE` holds one record `RECORD`: bytes `RECORD` of a configuration, or, of a long
frame, an array `RECORD`. Nothing else of it is read. An error has a code and a text of these, never what an
exception said.
"""

from __future__ import annotations

MESSAGE_TYPE = "train.frame"
RECORD = "frame"
STYPE = "fedsim.frame"
"""How the array's bytes are to be read: as they are."""

AWAY, UNREADABLE = 101, 102
REASONS = {
    AWAY: "the silo's daemon does not answer",
    UNREADABLE: "not a message that this silo takes",
}

ONE_PIECE = 2**21
"""Bytes that travel in one piece; longer frames are cut."""
MAX_FRAME = 256 * 2**20
"""Bytes of a frame at most."""
