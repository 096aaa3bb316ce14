"""docs/step-by-step.md is followed from its first command to its last, every one taken from the page.

What a second machine would do is done here by copying a file. Installing is left out: a silo's environment
has what the wheel of `./silos` has, and no more of fedsim. Where this is root, each command runs as the user
that the page names; else all run as one user. A unit's `ExecStart` stands for systemd.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support import pages
from support.daemons import short_folder
from support.distribution import ROOT, unpacked

pytestmark = pytest.mark.slow
PAGE = "docs/step-by-step.md"
USERS = {"fl": 50101, "silo-daemon": 50111, "silo-node": 50112}
GROUPS = {"fl": 50101, "silo": 50110}
INSTALLS = re.compile(r"python3\.11 -m venv|\S+/pip install|groupadd |useradd ")
PART = re.compile(r"^#{2,3} ([^\n]+)\n(.*?)(?=^#{2,3} |\Z)", re.M | re.S)
BLOCK = re.compile(r"(?:<!-- file: (\S+) -->\n)?```(\w+)\n(.*?)```", re.S)
UNIT_USER = re.compile(r"^User=(.+)$", re.M)


def can_switch() -> bool:
    """Whether this is root and others may run this Python."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return False
    command = [*as_user("silo-node"), sys.executable, "-c", "import fedsim, torch"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def as_user(name: str) -> list[str]:
    group = GROUPS["fl" if name == "fl" else "silo"]
    return ["setpriv", "--reuid", str(USERS[name]), "--regid", str(group), "--clear-groups", "env"]


@dataclass
class Party:
    """One organisation's machine: where its files are, and what runs there."""

    root: Path  # of /srv and of what root has in hand
    name: str  # "fl" or a silo's
    bin: Path
    port: int
    switch: bool
    ran: list[str] = field(default_factory=list)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    cwd: Path = Path()

    def __post_init__(self) -> None:
        self.cwd = self.hand
        (self.hand / "units").mkdir(parents=True)
        (self.hand / "deploy").symlink_to(ROOT / "deploy")  # of the checkout in which the page begins

    @property
    def home(self) -> Path:
        return self.root / self.name

    @property
    def hand(self) -> Path:
        """The folder in which root begins."""
        return self.root / f"{self.name}-hand"

    def here(self, text: str) -> str:
        text = text.replace("/opt/fedsim/bin", str(self.bin)).replace(
            "/etc/systemd/system", f"{self.hand}/units"
        )
        text = text.replace("fl.example.org:8000", f"127.0.0.1:{self.port}").replace(
            "--port 8000", f"--port {self.port}"
        )
        text = text.replace("fl.example.org", "127.0.0.1").replace("/srv/fl", str(self.root / "fl"))
        text = text.replace("/srv/silo", str(self.home))
        return text if self.name == "fl" else text.replace("north", self.name)

    def follow(self, part: str) -> None:
        """What a part of the page says: files are written, commands run."""
        for name, language, content in BLOCK.findall(part):
            if name:
                (self.cwd / name).write_text(self.here(content))
                (self.cwd / name).chmod(0o644)
            elif language == "console":
                for line in content.splitlines():
                    self.type(line)

    def type(self, line: str) -> None:
        self.ran.append(line)
        if INSTALLS.match(line):
            return
        if line.startswith("cd "):
            self.cwd = Path(self.here(line).split()[1])
            return
        if line.startswith("systemctl "):
            self.control(line.split()[1], [word for word in line.split()[2:] if word != "--now"])
            return
        done = self.run(line)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}{self.logs}"

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """A command as it stands on the page, by the user that it names."""
        words = shlex.split(self.here(line))
        if words[0] == "runuser":
            words = [*(as_user(words[2]) if self.switch else []), *words[4:]]
        if words[0] == "install":
            words = self.owners(words)
        if words[0] == "chown":
            user, group = words[1].split(":")
            words[1] = f"{USERS[user]}:{GROUPS[group]}" if self.switch else str(os.geteuid())
        if any("*" in word for word in words):
            raise AssertionError(f"a pattern in {line}")
        return subprocess.run(
            words,
            cwd=self.cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def owners(self, words: list[str]) -> list[str]:
        made: list[str] = []
        for option, word in zip(["", *words], words, strict=False):
            if option in ("-o", "-g"):
                made.append(str((USERS if option == "-o" else GROUPS)[word]))
            else:
                made.append(word)
        if self.switch:
            return made
        kept = [
            i for i, word in enumerate(made) if word not in ("-o", "-g") and made[i - 1] not in ("-o", "-g")
        ]
        return [made[i] for i in kept]

    @property
    def logs(self) -> str:
        """The last lines of every service of the study."""
        return "".join(f"\n{log}: {log.read_text()[-2000:]}" for log in self.root.glob("*-hand/*.log"))

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.bin}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "COLUMNS": "100"}

    def control(self, verb: str, names: list[str]) -> None:
        for name in names:
            if verb in ("stop", "restart"):
                self.stop(name)
            if verb in ("start", "enable", "restart"):
                self.start(name)

    def start(self, name: str) -> None:
        file = self.hand / "units" / f"{name}.service"
        unit = self.here(file.read_text())
        (command,) = re.findall(r"^ExecStart=(.+)$", unit, re.M)
        (user,) = UNIT_USER.findall(unit)
        given = dict(
            each.split("=", 1)
            for line in re.findall(r"^Environment=(.+)$", unit, re.M)
            for each in line.split()
        )
        with (self.hand / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [*(as_user(user) if self.switch else []), *shlex.split(command)],
                cwd="/",
                env=self.environment | given,
                stdout=log,
                stderr=log,
                start_new_session=True,
                umask=0o077,
            )
        time.sleep(4)  # as a person would take; services find each other in any order
        assert self.running[name].poll() is None, (self.hand / f"{name}.log").read_text()

    def stop(self, name: str) -> None:
        process = self.running.pop(name)
        if process.poll() is not None:
            return
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextmanager
def parties(root: Path, silo_bin: Path) -> Iterator[dict[str, Party]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    switch = can_switch()
    root.chmod(0o755)
    made = {
        name: Party(root, name, Path(sys.prefix) / "bin" if name == "fl" else silo_bin, port, switch)
        for name in ("fl", "north", "south")
    }
    try:
        yield made
    finally:
        for party in made.values():
            for name in list(party.running):
                party.stop(name)


@pytest.fixture(scope="module")
def silo_bin(tmp_path_factory):
    """An environment with a silo's part of fedsim, and this one's libraries."""
    with short_folder() as folder:
        folder.chmod(0o755)
        venv.create(folder / "silo", symlinks=True)
        site = folder / "silo" / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        unpacked("silos", tmp_path_factory.mktemp("source"), site)
        (site / "libraries.pth").write_text(
            "\n".join(path for path in sys.path if path.endswith("-packages"))
        )
        command = folder / "silo" / "bin" / "fedsim"
        python = folder / "silo" / "bin" / "python"
        command.write_text(f"#!{python}\nimport sys\nfrom fedsim.cli.main import main\nsys.exit(main())\n")
        command.chmod(0o755)
        subprocess.run(["chmod", "-R", "go+rX", str(folder)], check=True)
        yield command.parent


def records(name: str) -> str:
    rows = [f"{20 + (7 * i + len(name)) % 70},{0.5 + (i % 23) / 10:.1f}" for i in range(400)]
    lines = [f"{row},{'yes' if int(row.split(',')[0]) > 55 else 'no'}" for row in rows]
    return "\n".join(["age,creatinine,readmitted", *lines]) + "\n"


def test_the_page_is_followed_from_its_first_command_to_its_last(silo_bin):
    source = pages.text(PAGE)
    parts = PART.findall(source)
    with short_folder() as root, parties(root, silo_bin) as who:
        fl, silos = who["fl"], [who["north"], who["south"]]
        for title, part in parts:
            for silo in silos:
                bring(fl, silo, title)
            if title.startswith(("1.", "2.", "5.")) or title.endswith("(server)"):
                fl.follow(part)
            elif title.endswith("(silo)") or title.startswith("A new key"):
                silos[0].follow(part)
            else:
                for silo in silos:
                    silo.follow(part)
        shown = [line for block in pages.CONSOLE.findall(source) for line in block.splitlines()]
        ran = {line for party in who.values() for line in party.ran}
        assert [line for line in shown if line not in ran] == []
        for run in ("first", "second"):
            assert (fl.home / "runs" / run / "report.html").is_file()
        check_roles(who)
        check_restored(fl, silos[0])


def bring(fl: Party, silo: Party, title: str) -> None:
    """What passes from one machine to another before a part of the page."""
    if title.startswith("3."):
        shutil.copytree(fl.home / "kits" / silo.name, silo.hand / "kit")
        (silo.hand / "patients.csv").write_text(records(silo.name))
    elif title.startswith("5."):
        shutil.copyfile(silo.home / "state" / "identity.pub", fl.home / f"{silo.name}.pub")
    elif title.startswith("Another run"):
        shutil.copytree(
            silo.home / "state", silo.hand / "older", ignore=shutil.ignore_patterns("identity*", "log*")
        )
    elif title.startswith("The server takes it") and silo.name == "north":
        shutil.copyfile(silo.home / "node" / "new.key.pub", fl.home / "north-2.pub")


def check_roles(who: dict[str, Party]) -> None:
    """Neither the node's user nor the server's reads what is the daemon's."""
    north = who["north"]
    if not north.switch:
        return
    for user in ("silo-node", "fl"):
        for file in ("patients.csv", "silo.yaml", "state/ledger.sqlite", "state/identity.key"):
            assert north.run(f"runuser -u {user} -- cat /srv/silo/{file}").returncode != 0
    assert north.run("runuser -u silo-daemon -- cat /srv/silo/node/node.key").returncode != 0


def check_restored(fl: Party, silo: Party) -> None:
    """A ledger that is put back is found out by a line, and the run that finds it out spends nothing."""
    silo.stop("fedsim-silo")
    for file in (silo.home / "state").glob("ledger.sqlite*"):
        file.unlink()
    for file in (silo.hand / "older").iterdir():
        made = Path(shutil.copy2(file, silo.home / "state"))
        if silo.switch:
            os.chown(made, USERS["silo-daemon"], GROUPS["silo"])
    silo.start("fedsim-silo")
    before = spent(silo)
    again = next(line for line in fl.ran if " deploy " in line).replace("runs/first", "runs/third")
    done = fl.run(again)
    assert done.returncode != 0
    assert "the silo's ledger does not hold what this server has seen of it" in " ".join(done.stdout.split())
    assert spent(silo) == before
    assert not (fl.home / "runs" / "third").exists()


def spent(silo: Party) -> dict[str, object]:
    shown = silo.run("runuser -u silo-daemon -- /opt/fedsim/bin/fedsim ledger show /srv/silo/state --json")
    tree = json.loads(shown.stdout)
    return {key: tree[key] for key in ("runs", "charged", "reserved")}
