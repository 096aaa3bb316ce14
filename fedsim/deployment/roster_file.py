"""roster.yaml of a federation's own keys, and the line in its file that names it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsim.common.durable import atomic_file
from fedsim.common.errors import InputError
from fedsim.common.files import writing
from fedsim.common.identity import PUBLIC_FILE as IDENTITY
from fedsim.common.serialise import to_yaml
from fedsim.deployment.federation_edit import relative_to
from fedsim.deployment.federation_file import ROOT, Federation, load_federation
from fedsim.secagg.envelopes import KEY_FILE, PUBLIC_FILE
from fedsim.secagg.roster import Roster, parse_roster


def write_roster(file: Path, shuffler: Path, socket: Path, out: Path, terms: Mapping[str, Any]) -> Roster:
    """Write the roster of all silos of a federation, and name it in the federation's file.

    Args:
        file: federation.yaml, without a shuffler so far, whose server's keys `fedsim certs` made.
        shuffler: folder with what the shuffler has published: envelopes.pub and identity.pub.
        socket: where it listens on this machine.
        out: roster.yaml, a new file.
        terms: the roster's other fields, `fedsim.secagg.roster.Roster`.

    Raises:
        InputError: a key is missing or twice there, or one of the files says something already.
    """
    known = load_federation(file)
    if known.shuffler is not None:
        hint = "names a roster already; another one is another file and another federation.yaml"
        raise InputError(f"{ROOT}.shuffler", str(known.shuffler.roster), hint)
    if out.exists():
        raise InputError("--out", str(out), "is there already, and is left as it is; give another")
    made = parse_roster({**terms, **keys_of(known, shuffler)})
    line = {"roster": out, "key": known.authority.with_name(KEY_FILE), "socket": socket}
    with writing(out), atomic_file(out) as draft:
        draft.write_text(to_yaml(made.model_dump(mode="json")), encoding="utf-8")
    with writing(file, "FEDERATION"), atomic_file(file) as draft:
        text, more = file.read_text(encoding="utf-8"), to_yaml({"shuffler": relative_to(file, line)})
        draft.write_text(text.rstrip("\n") + "\n" + more, encoding="utf-8")
        load_federation(draft)
    return made


def keys_of(known: Federation, shuffler: Path) -> dict[str, Any]:
    """A roster's fields that are keys. InputError if one cannot be read."""
    return {
        "silos": {name: key.hex() for name, key in known.identities.items()},
        "server": _key(known.authority.with_name(PUBLIC_FILE)),
        "shuffler": {"key": _key(shuffler / PUBLIC_FILE), "identity": _key(shuffler / IDENTITY)},
    }


def _key(file: Path) -> str:
    try:
        return file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("key", str(file), f"a public key ({type(error).__name__})") from None
