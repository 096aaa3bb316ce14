"""A silo's receipt read by a reviewer, who has its public key alone: no ledger, and none of a silo's code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedsim.common.chain import text
from fedsim.common.errors import InputError, Refused
from fedsim.common.identity import RECEIPT, RECEIPT_FORMAT, is_signed, public_key


def verified_receipt(receipt: str, key: str) -> Mapping[str, Any]:
    """Content of a receipt that the silo of this public key (hexadecimal) has signed. InputError if the key
    is no key; Refused if it is no receipt, was altered, or is another silo's.
    """
    checked = public_key(key, "--key")
    try:
        content = json.loads(receipt)
        signature = bytes.fromhex(content.pop("signature"))
        whole = RECEIPT + text(content).encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Refused("this is no receipt of a silo") from None
    if not is_signed(checked, whole, signature):
        raise Refused("the receipt was altered, or another silo's key signed it")
    if content.get("format") != RECEIPT_FORMAT:
        raise InputError("receipt", content.get("format"), f"of format {RECEIPT_FORMAT}")
    return dict(content)
