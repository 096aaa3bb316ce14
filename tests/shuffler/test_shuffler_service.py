"""`python -m shuffler` and `fedsim shuffler`, as an operating system starts, asks and stops them."""

import json
import resource
import signal
import stat
import subprocess
import sys
import urllib.request
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.daemons import PATIENCE, as_program
from support.flower import free_port, until
from support.rosters import Parties
from support.shuffler_process import shuffler_process
from support.shufflers import Round
from typer.testing import CliRunner

from fedsim.cli.main import app
from fedsim.common.errors import InputError, Refused
from fedsim.secagg.shuffling import Request, greeting
from fedsim.wire.dial import dial
from fedsim.wire.frames import receive, sealed, send
from fedsim.wire.messages import Hello
from fedsim.wire.service import FAILED
from shuffler.__main__ import main
from shuffler.config import load_config
from shuffler.keys import Keys
from shuffler.service import enrol


def write(folder: Path, **fields: Any) -> Path:
    file = folder / "shuffler.yaml"
    told = {"state": "state", "listen": {"socket": "s"}, "rosters": ["roster.yaml"]}
    file.write_text(yaml.safe_dump({**told, **fields}))
    return file


command = partial(as_program, "shuffler", main)


def parties_of(folder: Path) -> Parties:
    """Silos and a server, whose roster names the shuffler that has enrolled there."""
    parties, keys = Parties(), Keys.load(folder / "state")
    parties.shuffler, parties.shuffler_identity = keys.envelopes, keys.identity
    parties.roster = parties.made()
    (folder / "roster.yaml").write_text(yaml.safe_dump(parties.roster.model_dump(mode="json")))
    return parties


def test_a_running_shuffler_shows_its_answers_to_prometheus(folder):
    port = free_port()
    file = write(folder, metrics={"port": port})
    enrol(load_config(file))
    parties_of(folder)
    line = [sys.executable, "-m", "shuffler", "--config", str(file)]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: command("--config", str(file), "--health")[0] == 0)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as response:
                assert 'fedsim_answers_total{kind="standing"} 1.0' in response.read().decode()
        finally:
            process.kill()


def exchange(folder: Path, request: Request) -> bytes:
    return _said(folder, request.body())


def _said(folder: Path, body: bytes, socket: str = "s") -> bytes:
    with dial(folder / socket, PATIENCE) as connection:
        send(connection, sealed(body))
        return receive(connection, 1 << 20) or b""


def test_enrol_serve_release_and_stop(folder):
    file = write(folder)
    line = [sys.executable, "-m", "shuffler", "--config", str(file)]
    public = json.loads(subprocess.check_output([*line, "--enrol"], text=True, timeout=PATIENCE))
    made = Round(parties_of(folder))
    assert made.parties.roster.shuffler.model_dump() == public
    assert command("--config", str(file), "--health")[0] == 1
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert f"roster {made.parties.roster.digest} of test: 5 silos" in process.stderr.readline()
            assert "listens" in process.stderr.readline()
            assert command("--config", str(file), "--health") == (0, "")
            identity = bytes.fromhex(made.keys.identity.public)
            start = greeting(_said(folder, Hello().body()), identity).start
            made.context = replace(made.context, start=start)
            made.reports = [made.parties.report(i, row, made.context) for i, row in enumerate(made.numbers)]
            frame = exchange(folder, made.request())
            mark = greeting(_said(folder, Hello().body()), identity)
            assert made.read(frame, made.request()).mark == mark
            assert greeting(_said(folder, Hello(head=mark.head).body()), identity) == mark
            with pytest.raises(Refused, match="an older copy"):
                greeting(_said(folder, Hello(head="ab" * 32).body()), identity)
            assert (made.total(made.read(frame, made.request())) == made.numbers.sum(axis=0)).all()
            assert exchange(folder, made.request()) == frame
            with pytest.raises(Refused, match="released to another request"):
                made.read(exchange(folder, made.request([0, 1, 2])), made.request([0, 1, 2]))
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    kept = (folder / "state" / "log").read_text()
    assert kept.count("refused: ") == 2
    assert "has stopped" in kept
    for path in (folder / "state").iterdir():
        assert path.suffix == ".pub" or stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_full_disk_ends_it_with_its_own_code_and_it_goes_on_when_there_is_room(folder):
    """What it could not note it has not released; a round of its next process it releases, once."""
    file = write(folder, listen={"socket": "s.sock"})
    enrol(load_config(file))
    made = Round(parties_of(folder))
    identity = bytes.fromhex(made.keys.identity.public)

    def asked() -> bytes:
        start = greeting(_said(folder, Hello().body(), "s.sock"), identity).start
        made.context = replace(made.context, start=start)
        made.reports = [made.parties.report(i, row, made.context) for i, row in enumerate(made.numbers)]
        return _said(folder, made.request().body(), "s.sock")

    with shuffler_process(file) as shuffler:
        resource.prlimit(shuffler.pid, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        with pytest.raises(Refused, match="notes cannot be written"):
            made.read(asked(), made.request())
        assert shuffler.wait() == FAILED
        shuffler.start()
        frame = asked()
        assert (made.total(made.read(frame, made.request())) == made.numbers.sum(axis=0)).all()
        assert _said(folder, made.request().body(), "s.sock") == frame
        with pytest.raises(Refused, match="released to another request"):
            made.read(_said(folder, made.request([0, 1, 2]).body(), "s.sock"), made.request([0, 1, 2]))
        assert shuffler.stop() == 0


def test_enrolment_is_once(folder):
    file = write(folder)
    enrol(load_config(file))
    for again in ("whole", "without notes"):
        if again == "without notes":
            (folder / "state" / "released.sqlite").unlink()
        with pytest.raises(InputError):
            enrol(load_config(file))


def test_lost_notes_are_not_begun_anew(folder):
    file = write(folder)
    enrol(load_config(file))
    parties_of(folder)
    (folder / "state" / "released.sqlite").unlink()
    code, said = command("--config", str(file))
    assert code == 2
    assert "--enrol, and only then" in said


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"listen": {}}, "shuffler.listen"),
        ({"rosters": "roster.yaml"}, "shuffler.rosters"),
        ({"max_request": 0}, "shuffler.max_request"),
        ({"max_request": True}, "shuffler.max_request"),
        ({"state": None}, "shuffler.state"),
        ({"roster": []}, "shuffler.roster: []: unknown key; did you mean 'rosters'"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_the_field(folder, fields, field):
    file = write(folder, **fields)
    code, said = command("--config", str(file))
    assert code == 2
    assert said.startswith(f"error: {field}")
    assert said.count("\n") == 1
    found = CliRunner().invoke(app, ["shuffler", "--config", str(file)])
    assert (found.exit_code, found.stderr) == (code, said)


def test_without_rosters_no_server_is_served(folder):
    file = write(folder, rosters=[])
    enrol(load_config(file))
    assert "at least one roster" in command("--config", str(file))[1]


def test_a_roster_of_another_shuffler_is_refused_at_the_start(folder):
    file = write(folder)
    enrol(load_config(file))
    stranger = Parties().roster
    (folder / "roster.yaml").write_text(yaml.safe_dump(stranger.model_dump(mode="json")))
    code, said = command("--config", str(file))
    assert code == 2
    assert said.startswith("error: roster.shuffler")
