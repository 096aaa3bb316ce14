"""What an organisation audits: the modules of ours that a silo's daemon loads."""

import json
import subprocess
import sys

from support.deployed import resolved_of, write_silos

MOST_LINES = 12_515
LOADED = {
    "fedsim": "algorithms common data privacy problems protocol wire",
    "fedsim.algorithms": "registry",
    "fedsim.data": "dataset prepare source transform",
    "fedsim.privacy": "calibrate cost discrete_noise gaussian grid mechanism rounding silo_gaussian",
    "fedsim.problems": "answerable composite exact glm kinds",
    "fedsim.protocol": "batch copies facts groups limits plan query rows settings statistics unit",
    "fedsim.wire": "connections daemon dial frames health logs messages service",
}
"""By package, but for `fedsim.common` and `silos`, of which all modules may be loaded."""
ON_DEMAND = {
    "silos.front.offers": "an offer is tried out",
    "silos.front.served": "a round is asked for",
    "fedsim.protocol.clashes": "an offer is tried out",
    "fedsim.protocol.contract": "an offer is tried out",
    "fedsim.protocol.dryrun": "an offer is tried out",
    "fedsim.problems.section": "an offer is tried out",
    "silos.vault.network": "a network is offered",
    "fedsim.problems.costed": "a gradient with costs by group is asked for",
    "silos.front.enrolment": "it enrols",
    "silos.front.pending": "the operator decides",
    "silos.front.pooled": "a roster is pinned",
    "silos.front.metrics": "a port for Prometheus is given",
    "fedsim.wire.metrics": "a port for Prometheus is given",
    "fedsim.secagg": "a roster is pinned",
    "fedsim.isolated": "a plug-in is listed",
    "fedsim.privacy.loss": "batches are sampled",
    "silos.vault.persons": "persons are the unit",
    "silos.vault.person_sums": "persons are the unit",
    "silos.vault.terms": "another statistic than a gradient is asked for",
    "silos.vault.group_terms": "another statistic than a gradient is asked for",
    "silos.vault.selections": "another statistic than a gradient is asked for",
    "silos.vault.scores": "another statistic than a gradient is asked for",
    "fedsim.data.public": "public records are named",
    "fedsim.problems.public_records": "an offer has public records",
    "fedsim.data.csv_table": "records are a table",
    "fedsim.data.arrays": "records are an npz file",
}
PROGRAM = """
import json, sys
from pathlib import Path
{statements}
ours = [name for name in sys.modules if name.partition(".")[0] in ("fedsim", "silos", "server", "shuffler")]
files = {{sys.modules[name].__file__ for name in ours}} - {{None}}
print(json.dumps([ours, sum(Path(file).read_text(encoding="utf-8").count("\\n") for file in files)]))
"""


def loaded(statements: str) -> tuple[set[str], int]:
    """Names of the modules that a new process has after these statements, and all their lines."""
    command = [sys.executable, "-c", PROGRAM.format(statements=statements)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names, lines = json.loads(done.stdout.splitlines()[-1])
    return set(names), lines


def allowed(names: set[str]) -> set[str]:
    """Of these modules the ones that a silo may load at once."""
    free = {name for name in names if name.startswith(("fedsim.common", "silos"))}
    listed = {f"{package}.{module}" for package, modules in LOADED.items() for module in modules.split()}
    return (free | listed | {"fedsim"}) - ON_DEMAND.keys()


def test_the_daemon_loads_these_modules_and_no_more_lines():
    names, lines = loaded("import silos.front.service")
    assert names <= allowed(names), sorted(names - allowed(names))
    assert lines <= MOST_LINES


def test_a_silo_that_enrols_and_opens_loads_no_others(tmp_path):
    file = write_silos(tmp_path, resolved_of())[0]
    statements = [
        "from silos.front.config import load_config",
        "from silos.front.enrolment import enrol",
        "from silos.front.silo import Silo",
        f"config = load_config(Path({str(file)!r}))",
        "enrol(config)",
        "Silo.open(config).close()",
    ]
    names, _ = loaded("\n".join(statements))
    assert names - {"fedsim.data.arrays", "silos.front.enrolment"} <= allowed(names), sorted(
        names - allowed(names)
    )
