"""What a silo's operator has approved: files of a folder that the silo's user alone may write to.

`OFFER.approved`, which counts unless there is `OFFER.refused`, has the digest of what may be admitted for the
offer (`Admissible.digest`), and the time by the ledger at which the approval lapses, in microseconds.
"""

from __future__ import annotations

from pathlib import Path

from fedsim.common.durable import to_disk

APPROVED, REFUSED, USED = "approved", "refused", "used"  # the last: one whose run is being admitted


def approval(admission: str, lapses: int) -> str:
    """The text of an approval's file: the admission's digest, and when it lapses, microseconds since 1970."""
    return f"{admission} {lapses}"


def used(folder: Path, offer: str, admission: str, now: int) -> bool:
    """Whether this offer is approved as this admission; the approval is used then, once: whoever renames or
    removes it first has it, the silo or the operator who takes it back.
    """
    place = folder / f"{offer}.{APPROVED}"
    try:
        said, _, lapses = place.read_text().partition(" ")
        if said != admission or now >= int(lapses) or place.with_suffix(f".{REFUSED}").exists():
            return False
        place.rename(place.with_suffix(f".{USED}"))
    except (OSError, ValueError):
        return False
    to_disk(folder)
    return True
