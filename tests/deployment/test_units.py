"""The units of systemd: systemd reads them without a complaint, and what dies comes back."""

import re
import shutil
import subprocess

import pytest
from support.distribution import ROOT

KIT = ROOT / "fedsim" / "deployment" / "kit_files"
UNITS = sorted([*KIT.glob("*.service.txt"), *(ROOT / "deploy" / "systemd").glob("*.service")])


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_systemd_reads_it(file, tmp_path):
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed")
    text = re.sub(r"(?<==)/opt/\S+", shutil.which("true") or "/bin/true", file.read_text(), flags=re.M)
    unit = tmp_path / file.name.removesuffix(".txt")
    unit.write_text(text.replace("$silo", "north").replace("$superlink", "fl.example.org:8000"))
    done = subprocess.run([tool, "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_it_is_started_again_for_ever_and_confined(file):
    section = re.split(r"^\[(\w+)\]\n", file.read_text(), flags=re.M)
    parts = dict(zip(section[1::2], section[2::2], strict=True))
    assert "StartLimitIntervalSec=0\n" in parts["Unit"]
    given = dict(line.split("=", 1) for line in parts["Service"].split("\n") if line)
    own = "--keep" in given["ExecStart"]  # it goes on by itself, and ends where it was refused for good
    assert given["Restart"] == ("on-abnormal" if own else "always")
    assert int(given["RestartSec"]) >= 5
    assert given["ProtectSystem"] == "strict"
    assert given["UMask"] == "0077"
    assert given["User"] != "root"
    for name in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome", "RestrictSUIDSGID"):
        assert given[name] == "yes"
