"""docker-compose.yml and the two Dockerfiles: valid, and as closed as they say."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.distribution import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
SILOS = ("silo-1", "silo-2", "silo-3")
SERVER, SHUFFLER = "49999:49999", "49998:49998"
SHUFFLE = ("shuffler-enrol", "roster", "shuffler")
"""Services of the profile `shuffle`."""
ROOT_ONCE = ("prepare", "renew")


def _tool(name: str) -> str:
    """Beside this Python, or on the path."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def _volumes(service: str) -> set[str]:
    return {entry.split(":")[0] for entry in SERVICES[service]["volumes"]}


def test_docker_compose_accepts_the_file():
    file = ("--file", str(ROOT / "docker-compose.yml"))
    for profile in (
        (),
        ("--profile", "shuffle"),
        ("--profile", "enrol"),
        ("--profile", "train"),
        ("--profile", "renew"),
    ):
        command = [_tool("docker-compose"), *file, *profile, "config", "-q"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_starting_services_neither_enrols_nor_trains():
    """What fixes or spends a budget is behind a profile, and nothing that is not depends on it."""
    spending = {f"{silo}-enrol": ["enrol"] for silo in SILOS} | {"train": ["train"]}
    assert {name: made["profiles"] for name, made in SERVICES.items() if name in spending} == spending
    commands = {name: " ".join(made["command"]) for name, made in SERVICES.items()}
    assert {name for name, command in commands.items() if "enrol.sh" in command} == set(spending) - {"train"}
    assert [name for name, command in commands.items() if "fedsim deploy" in command] == ["train"]
    assert not [name for name, made in SERVICES.items() if set(made.get("depends_on", ())) & set(spending)]
    assert not [name for name in spending if "restart" in SERVICES[name]]


IMAGES = ("silos", "server", "shuffler")


@pytest.mark.parametrize("folder", IMAGES)
def test_hadolint_accepts_the_dockerfile(folder):
    command = [_tool("hadolint"), "--failure-threshold", "warning", str(ROOT / folder / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_is_hardened(service):
    made = SERVICES[service]
    assert made["read_only"]
    assert made["cap_drop"] == ["ALL"]
    assert made["security_opt"] == ["no-new-privileges:true"]
    assert made["user"] != "0:0" or service in ROOT_ONCE
    assert service in ROOT_ONCE or "cap_add" not in made
    assert made["mem_limit"] in ("2g", "512m")
    assert made["cpus"] == 2
    assert made["pids_limit"] == 500
    assert made["logging"] == {"driver": "json-file", "options": {"max-size": "10m", "max-file": "3"}}
    assert "privileged" not in made
    assert "ports" not in made


@pytest.mark.parametrize("service", ROOT_ONCE)
def test_root_makes_files_without_a_network_and_is_gone(service):
    assert SERVICES[service]["network_mode"] == "none"
    assert "restart" not in SERVICES[service]


def test_the_authority_that_nodes_trust_is_seen_by_no_service_that_stays():
    assert {service for service in SERVICES if "authority" in _volumes(service)} == set(ROOT_ONCE)


@pytest.mark.parametrize("silo", SILOS)
def test_only_a_silo_has_its_records_and_ledger_and_it_has_no_network(silo):
    own = {silo, f"{silo}-enrol"}
    for volume in (f"{silo}-records", f"{silo}-state"):
        assert {service for service in SERVICES if volume in _volumes(service)} == own | {"prepare"}
    for service in own:
        assert SERVICES[service]["network_mode"] == "none"
        assert "networks" not in SERVICES[service]
    assert f"{silo}-records:/records:ro" in SERVICES[silo]["volumes"]


def test_nodes_share_no_network_and_none_leads_out():
    assert all(network["internal"] for network in COMPOSE["networks"].values())
    nets = [tuple(SERVICES[f"node-{k}"]["networks"]) for k in (1, 2, 3)]
    assert len(set(nets)) == 3
    assert all(len(each) == 1 for each in nets)
    for service in ("serverapp", "enroll", "train"):
        assert SERVICES[service]["networks"] == ["control"]


def test_each_trust_domain_is_a_user():
    users = {service: made["user"] for service, made in SERVICES.items() if service not in ROOT_ONCE}
    nodes = {f"node-{k}" for k in (1, 2, 3)}
    domains = {f"{silo}{part}" for silo in SILOS for part in ("", "-enrol")} | nodes
    assert all(users[silo] == users[f"{silo}-enrol"] for silo in SILOS)
    assert len({users[each] for each in (*SILOS, *nodes)}) == 6  # a node cannot open its daemon's files
    assert {users[service] for service in SHUFFLE} == {SHUFFLER}
    assert {user for service, user in users.items() if service not in {*domains, *SHUFFLE}} == {SERVER}


def test_only_the_shuffler_has_its_keys_and_notes_and_it_has_no_network():
    owners = {service for service in SERVICES if "shuffler-state" in _volumes(service)}
    assert owners == {"shuffler", "shuffler-enrol", "prepare"}
    for service in SHUFFLE:
        assert SERVICES[service]["network_mode"] == "none"
        assert SERVICES[service]["profiles"] == ["shuffle"]
        own = _volumes(service) - {"roster"}
        assert not [
            name for name in own if name.startswith(("server", "silo", "node")) and "public" not in name
        ]
    for service, made in SERVICES.items():
        writers = [entry for entry in made["volumes"] if entry.startswith("roster:") and entry[-3:] != ":ro"]
        assert not writers or service in ("prepare", "roster")


def test_secrets_are_files_and_not_in_the_environment():
    for made in SERVICES.values():
        for name in made.get("environment", {}):
            assert not any(word in name.lower() for word in ("key", "secret", "token", "password"))


@pytest.mark.parametrize("service", [name for name, made in SERVICES.items() if "healthcheck" in made])
def test_health_checks_have_no_spaces_or_quotes(service):
    """Some engines join the words of a test command and split them again."""
    words = SERVICES[service]["healthcheck"]["test"]
    assert words[0] == "CMD"
    assert not [word for word in words if set(word) & set(" '\"")]


@pytest.mark.parametrize("folder", IMAGES)
def test_an_image_runs_as_a_user_without_privileges(folder):
    lines = (ROOT / folder / "Dockerfile").read_text().splitlines()
    assert lines[-2].startswith("USER ")
    assert "USER 0" not in lines
    copied = {word for line in lines if line.startswith("COPY") for word in line.split()[1:]}
    others = {
        "silos": {"server", "shuffler"},
        "server": {"silos"},
        "shuffler": {"silos", "server"},
    }
    assert not copied & others[folder]
