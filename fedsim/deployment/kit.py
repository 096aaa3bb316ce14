"""The folder that one organisation needs to take part: a draft of its file, its node's key, units."""

from __future__ import annotations

import json
import shutil
from datetime import date
from importlib.resources import files
from pathlib import Path
from string import Template

from fedsim.common.durable import to_disk
from fedsim.common.errors import InputError
from fedsim.common.files import atomic_directory, check_free, files_below, writing
from fedsim.common.serialise import to_yaml
from fedsim.data.csv_table import TableData
from fedsim.deployment.certs import check_names, folder_of
from fedsim.deployment.federation_file import ROOT, Federation, load_federation

_TEXTS = ("README", "silo.yaml", "fedsim-silo.service", "fedsim-node.service")
_NODE = ("ca.crt", "node.key", "node.pub")
_TABLE = "  name: csv\n  path: <records.csv>\n  target: <column>\n  schema: <agreed with the others>"


def write_kit(silo: str, federation: Path, out: Path) -> list[Path]:
    """Write the kit of a silo that is to enrol into a new directory; its files, relative to `out`. The node's
    key is in the kit alone from then on. InputError if the silo is enrolled already, has its kit, has no key,
    or federation.yaml does not say enough.

    That file may have no silo yet. It names the SuperLink, the authority, which lies where `fedsim certs` put
    it, and perhaps public test records, whose schema is the silos' too.
    """
    known = load_federation(federation, begun=True)
    if silo in known.silos:
        raise InputError("SILO", silo, "is enrolled already: it has its kit; to change its key: rekey")
    if known.superlink is None:
        raise InputError(f"{ROOT}.superlink", None, "where silos reach the server, host:port")
    keys = known.authority.parent.parent
    own = keys / folder_of(silo)
    check_names([silo], "SILO", keys)
    if not (own / "node.key").is_file():
        hint = f"no silo that the federation knows: fedsim certs {keys} --silo NAME makes its node's key"
        if (own / "node.pub").is_file():
            hint = (
                "has its kit, or has made node.key itself: nothing else holds it. Where it is lost, the silo "
                "makes another (ssh-keygen -t ecdsa -b 384), for fedsim federation add, or rekey"
            )
        raise InputError("SILO", silo, hint)
    values = {"silo": silo, "superlink": known.superlink, "day": date.today().isoformat()}
    values |= {"name": json.dumps(silo), "records": _records(known)}
    check_free(out)
    with writing(out), atomic_directory(out) as draft:
        for name in _TEXTS:
            text = (files("fedsim.deployment") / "kit_files" / f"{name}.txt").read_text(encoding="utf-8")
            (draft / name).write_text(Template(text).substitute(values), encoding="utf-8")
        (draft / "node").mkdir(mode=0o700)
        for name in _NODE:
            shutil.copy2(own / name, draft / "node" / name)
        if isinstance(known.test, TableData) and isinstance(known.test.columns, Path):
            shutil.copy2(known.test.columns, draft / "schema.yaml")
    for folder in (out / "node", out, out.absolute().parent):
        to_disk(folder)
    with writing(own, "SILO"):
        (own / "node.key").unlink()
    return [file.relative_to(out) for file in files_below(out)]


def _records(known: Federation) -> str:
    """The draft of the section `records`: as the public test records, where they are a table."""
    if not isinstance(known.test, TableData):
        return _TABLE
    tree = known.test.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    tree |= {"name": known.test.name, "path": "<records.csv>"}
    if isinstance(known.test.columns, Path):
        tree["schema"] = "schema.yaml"
    return "".join(f"  {line}\n" for line in to_yaml(tree).splitlines()).rstrip()
