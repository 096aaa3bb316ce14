"""The `prepare` service of docker-compose.yml: keys, and demonstration records, for everybody at once.

Real organisations do this apart: `fedsim certs` where the server is, records where they are. Here one
container without a network fills a volume for each trust domain and gives it to that domain's user; what is
there already is kept.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedsim.data.federation import load as load_records
from fedsim.deployment import certs
from fedsim.deployment.topology import write_records
from fedsim.scenario.load import load
from fedsim.secagg.envelopes import KEY_FILE, PUBLIC_FILE, EnvelopeKey

SHUFFLER, SERVER, FIRST_SILO, FIRST_NODE = 49998, 49999, 50001, 51001
SILOS = ("silo-1", "silo-2", "silo-3")
PUBLIC = ("public", "server-public", "roster", "runs")
NODE = ("ca.crt", "node.key", "node.pub")


def main(scenario: Path, volumes: Path) -> None:
    """Fill the volumes, which are mounted in a folder for each trust domain."""
    if (volumes / "server" / "ready").exists():
        return
    _make_keys(volumes, SILOS)
    if not (volumes / "server" / KEY_FILE).exists():
        EnvelopeKey.create(volumes / "server")
    shutil.copy2(volumes / "server" / PUBLIC_FILE, volumes / "server-public")
    told = load(scenario)
    data = load_records(told.data, told.partition, told.seed, trial=0, unit=told.privacy.unit)
    for name, silo in zip(SILOS, data.silos, strict=True):
        write_records(volumes / name / "records" / "records.npz", silo.train._replace(groups=None))
    test = data.silos.test.rows._replace(groups=None, owners=None)
    write_records(volumes / "server" / "test.npz", test)
    for silo, name in enumerate(SILOS):
        daemon, node = FIRST_SILO + silo, FIRST_NODE + silo
        _share(volumes / name / "socket", daemon, node)
        for part in ("records", "state", "public"):
            _give(volumes / name / part, daemon)
        _give(volumes / name / "node", node)
    for own in ("server", "superlink", "serverapp", "server-public", "runs"):
        _give(volumes / own, SERVER)
    for folder in (volumes / "roster", volumes / "shuffler" / "state", volumes / "shuffler" / "public"):
        _give(folder, SHUFFLER)
    _share(volumes / "shuffler" / "socket", SHUFFLER, SERVER)
    (volumes / "server" / "ready").touch()


def renew(volumes: Path) -> None:
    """Replace the server's certificate by one of the same key and authority."""
    _make_keys(volumes, (), renew=True)
    for path in (volumes / "server").iterdir():
        os.chown(path, SERVER, SERVER)


def _make_keys(volumes: Path, silos: Sequence[str], renew: bool = False) -> None:
    """Make keys and certificates; the authority's stay where no service looks that runs on."""
    with tempfile.TemporaryDirectory() as scratch:
        keys = Path(scratch)
        for part in ("authority", "server"):
            shutil.copytree(volumes / part, keys / part)
        certs.make(keys, silos, hosts=["superlink"], renew=renew)
        for part in ("authority", "server"):
            shutil.copytree(keys / part, volumes / part, dirs_exist_ok=True)
        for name in silos:
            for file in NODE:
                shutil.copy2(keys / name / file, volumes / name / "node")


def _share(folder: Path, user: int, group: int) -> None:
    """A user's folder whose sockets are its group's too."""
    folder.chmod(0o2750)  # before it is another's, or the bit is lost
    os.chown(folder, user, group)


def _give(folder: Path, user: int) -> None:
    """Nobody but this user looks into its folders, apart from what is named public."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user)
        if path.is_dir():
            path.chmod(0o755 if path.name in PUBLIC else 0o700)


if __name__ == "__main__":
    if sys.argv[3:] == ["--renew"]:
        renew(Path(sys.argv[2]))
    else:
        main(*map(Path, sys.argv[1:]))
