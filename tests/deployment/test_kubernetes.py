"""The manifests of a silo: valid by Kubernetes' own schema, and as closed as docker-compose.yml."""

from typing import Any

import kubernetes_validate
import pytest
import yaml
from support.distribution import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
MADE: dict[tuple[str, str], dict[str, Any]] = {
    (made["kind"], made["metadata"]["name"]): made
    for file in sorted(FOLDER.glob("*.yaml"))
    for made in yaml.safe_load_all(file.read_text())
}
PODS = {
    name: made["spec"]["template"]["spec"] for (_, name), made in MADE.items() if "template" in made["spec"]
}
CONTAINERS = {each["name"]: each for pod in PODS.values() for each in pod["containers"]}


@pytest.mark.parametrize("made", MADE.values(), ids=["-".join(key) for key in MADE])
def test_it_is_valid(made):
    kubernetes_validate.validate(made, "1.31", strict=True)
    with pytest.raises(Exception, match="replica"):
        kubernetes_validate.validate(
            {**MADE["StatefulSet", "silo"], "spec": {"replica": 1}}, "1.31", strict=True
        )


@pytest.mark.parametrize("name", PODS)
def test_a_pod_runs_without_root_or_token_and_changes_no_ledger_s_modes(name):
    pod = PODS[name]
    assert not pod["automountServiceAccountToken"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_is_hardened_and_limited(name):
    made = CONTAINERS[name]
    given = made["securityContext"]
    assert given["readOnlyRootFilesystem"]
    assert not given["allowPrivilegeEscalation"]
    assert given["capabilities"] == {"drop": ["ALL"]}
    assert set(made["resources"]["limits"]) == {"cpu", "memory"}


def test_daemon_and_node_are_two_users_and_the_node_has_none_of_the_daemon_s_files():
    daemon, node, enrol = (CONTAINERS[name] for name in ("daemon", "node", "enrol"))
    assert daemon["securityContext"]["runAsUser"] == enrol["securityContext"]["runAsUser"]
    assert daemon["securityContext"]["runAsUser"] != node["securityContext"]["runAsUser"]
    mounts = {mount["name"]: mount for mount in node["volumeMounts"]}
    assert set(mounts) == {"node", "socket", "node-tmp"}
    assert mounts["socket"]["readOnly"]
    assert not {"node", "node-tmp"} & {mount["name"] for mount in daemon["volumeMounts"]}


def test_starting_enrols_nothing_and_no_pod_is_reached_from_elsewhere():
    assert "--enrol" not in str(CONTAINERS["daemon"])
    assert MADE["Job", "enrol"]["spec"]["backoffLimit"] == 0
    for name in PODS:
        spec = MADE["NetworkPolicy", name]["spec"]
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        assert "ingress" not in spec
    assert "egress" not in MADE["NetworkPolicy", "enrol"]["spec"]
