"""Signed receipts: what a run was to cost and did, for a reviewer who has only the silo's public key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedsim.common.errors import InputError, Refused
from fedsim.common.identity import Identity, is_signed, public_key
from silos.book import Enrolment, Run
from silos.chain import text

FORMAT = 1
_PURPOSE = b"fedsim receipt\n"  # no frame's body begins so


def body(enrolment: Enrolment, run: Run) -> dict[str, Any]:
    """What a closed run's receipt states; the same however often it is asked for.

    Times are microseconds since 1970 by the ledger's clock. `head_before` and `head_after` are heads of the
    silo's chain: the run's entries lie between them.

    Raises:
        Refused: the run is open.
    """
    if run.charged is None:
        raise Refused("a run has a receipt once it is closed")
    rounds = sorted(run.rounds)
    return {
        "format": FORMAT,
        "silo": enrolment.silo,
        "run": run.run,
        "session": run.session,
        "offer": run.offer,
        "plan": run.plan,
        "terms": run.terms,
        "rounds": rounds,
        "broadcasts": [run.rounds[r].broadcast for r in rounds],
        "reserved": run.price.whole.tree(),
        "charged": run.charged.tree(),
        "lifetime": enrolment.caps.tree(),
        "records": enrolment.records,
        "facts": run.facts,
        "notices": list(run.notices),
        "opened": run.opened,
        "closed": run.closed,
        "head_before": run.before,
        "head_after": run.after,
        "version": run.version,
        "public_key": enrolment.identity,
    }


def signed(enrolment: Enrolment, run: Run, identity: Identity) -> str:
    """A closed run's receipt, JSON; byte for byte the same each time.

    Raises:
        Refused: the run is open, or the key is not the silo's.
    """
    if identity.public != enrolment.identity:
        raise Refused("the key is not the one that the silo enrolled with")
    content = body(enrolment, run)
    return text({**content, "signature": identity.sign(_PURPOSE + text(content).encode()).hex()})


def verified(receipt: str, key: str) -> Mapping[str, Any]:
    """What a receipt states, if the silo of this public key (hexadecimal) signed it as it stands.

    Raises:
        InputError: the key is no key.
        Refused: it is no receipt, was altered, or is another silo's.
    """
    checked = public_key(key, "--key")
    try:
        content = json.loads(receipt)
        signature = bytes.fromhex(content.pop("signature"))
        whole = _PURPOSE + text(content).encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Refused("this is no receipt of a silo") from None
    if not is_signed(checked, whole, signature):
        raise Refused("the receipt was altered, or another silo's key signed it")
    if content.get("format") != FORMAT:
        raise InputError("receipt", content.get("format"), f"of format {FORMAT}")
    return dict(content)
