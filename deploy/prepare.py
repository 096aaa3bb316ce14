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
from pathlib import Path

from fedsim.data.federation import load as load_records
from fedsim.deployment import certs
from fedsim.deployment.topology import pooled_tests, write_records
from fedsim.scenario.load import load
from fedsim.secagg.envelopes import KEY_FILE, PUBLIC_FILE, EnvelopeKey

SHUFFLER, SERVER, FIRST_SILO = 49998, 49999, 50001
SILOS = ("silo-1", "silo-2", "silo-3")
PUBLIC = ("public", "server-public", "roster", "runs")
NODE = ("ca.crt", "node.key", "node.pub")


def main(scenario: Path, volumes: Path) -> None:
    """Fill the volumes, which are mounted in a folder for each trust domain."""
    if (volumes / "server" / "ready").exists():
        return
    with tempfile.TemporaryDirectory() as scratch:
        keys = Path(scratch)
        certs.make(keys, SILOS, hosts=["superlink"])
        shutil.copytree(keys / "server", volumes / "server", dirs_exist_ok=True)
        for name in SILOS:
            for file in NODE:
                shutil.copy2(keys / name / file, volumes / name / "node")
    if not (volumes / "server" / KEY_FILE).exists():
        EnvelopeKey.create(volumes / "server")
    shutil.copy2(volumes / "server" / PUBLIC_FILE, volumes / "server-public")
    told = load(scenario)
    data = load_records(told.data, told.partition, told.seed, trial=0)
    for name, silo in zip(SILOS, data.silos, strict=True):
        write_records(volumes / name / "records" / "records.npz", silo.train_features, silo.train_target)
    write_records(volumes / "server" / "test.npz", *pooled_tests(data.silos))
    for user, name in enumerate(SILOS, FIRST_SILO):
        for folder in (volumes / name).iterdir():
            _give(folder, user)
    for own in ("server", "superlink", "serverapp", "server-public", "runs"):
        _give(volumes / own, SERVER)
    for folder in (volumes / "roster", volumes / "shuffler" / "state", volumes / "shuffler" / "public"):
        _give(folder, SHUFFLER)
    socket = volumes / "shuffler" / "socket"
    socket.chmod(0o2750)  # sockets in it will be for its group; before it is another's, or the bit is lost
    os.chown(socket, SHUFFLER, SERVER)
    (volumes / "server" / "ready").touch()


def _give(folder: Path, user: int) -> None:
    """Nobody but this user looks into its folders, apart from what is named public."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user)
        if path.is_dir():
            path.chmod(0o755 if path.name in PUBLIC else 0o700)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
