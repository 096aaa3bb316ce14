"""The services of docker-compose.yml as processes of this machine: their very commands, on loopback."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from support.distribution import ROOT
from support.flower import environment, free_port

from fedsim.deployment.processes import Child, Processes

SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
ALL = "/volumes"
"""Where `prepare` has every volume."""
AS_ONE_USER = """
import os, runpy, sys
os.chown = lambda *_: None
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script that gives files to other users, which are all one here."""


class Ground:
    """Folders in the place of volumes, and free ports in the place of networks.

    Args:
        folder: an empty one, with a short name.
        rounds: of the demonstration.
    """

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder, self._port = folder, free_port()
        self._volumes = {
            name: folder / target.removeprefix("/")
            for name, target in _mounts("prepare").items()
            if target.startswith(ALL)
        }
        for path in self._volumes.values():
            path.mkdir(parents=True)
        shutil.copytree(ROOT / "deploy", folder / "deploy")
        demo = folder / "deploy" / "demo.yaml"
        demo.write_text(re.sub(r"num_rounds: \d+", f"num_rounds: {rounds}", demo.read_text()))
        federation = folder / "deploy" / "federation.yaml"
        federation.write_text(self._here("serverapp", federation.read_text()))

    @property
    def runs(self) -> Path:
        """Where run directories go."""
        return self._volumes["./runs/compose"]

    def volume(self, name: str) -> Path:
        """What stands for a volume."""
        return self._volumes[name]

    def run(self, service: str, words: list[str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a one-shot service to its end, or other `words` in a service's place."""
        command = self._command(service, words or SERVICES[service]["command"])
        return subprocess.run(
            command, env=self._environment(service), capture_output=True, text=True, check=False, timeout=600
        )

    def healthy(self, service: str) -> bool:
        """What its health check says."""
        return self.run(service, SERVICES[service]["healthcheck"]["test"][1:]).returncode == 0

    def start(self, processes: Processes, service: str) -> Child:
        """Start a service."""
        command = self._command(service, SERVICES[service]["command"])
        return processes.start(service, command, self.folder / f"{service}.log", self._environment(service))

    def _command(self, service: str, words: list[str]) -> list[str]:
        words = [self._here(service, word) for word in words]
        if words[:1] == ["python"]:
            words[0] = sys.executable
        if service in ("prepare", "renew"):
            words[1:1] = ["-c", AS_ONE_USER]
        return words

    def _here(self, service: str, text: str) -> str:
        """A word, or a file's text, with this machine's places in it."""
        for name, target in sorted(_mounts(service).items(), key=lambda each: -len(each[1])):
            text = re.sub(rf"(?<![\w/.-]){re.escape(target)}(?![\w-])", str(self._place(service, name)), text)
        text = str(self.folder / ALL[1:]) if text == ALL else text
        text = text.replace("superlink:8000", f"127.0.0.1:{self._port}").replace("0.0.0.0", "127.0.0.1")
        return str(self._port) if text == "8000" else text.replace("$$", "$")

    def _place(self, service: str, name: str) -> Path:
        if name in self._volumes:
            return self._volumes[name]
        path = self.folder / name
        if path.is_dir():
            return path
        own = self.folder / service / path.name  # a file of its own, in which places stand too
        if not own.exists():
            own.parent.mkdir(exist_ok=True)
            own.touch()
            own.write_text(self._here(service, path.read_text()))
        return own

    def _environment(self, service: str) -> Mapping[str, str]:
        home = self.folder / f"{service}.home"
        home.mkdir(exist_ok=True)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        flower = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(home)}
        flower["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] = "1"
        return {**environment(), "PATH": path, **flower, **SERVICES[service].get("environment", {})}


def _mounts(service: str) -> dict[str, str]:
    """Where each volume, folder or file is in a service."""
    return dict(entry.split(":")[:2] for entry in SERVICES[service]["volumes"])
