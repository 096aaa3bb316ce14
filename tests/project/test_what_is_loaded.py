"""What loads none of the libraries and parties that it does not need, each asked of a fresh process."""

import pytest
from support.distribution import assert_not_loaded, python

QUICK = (
    "from typer.testing import CliRunner; from fedsim.cli.main import app; assert CliRunner().invoke(app, "
)
FRAMES = "import numpy; from fedsim.wire.frames import *; " + (
    "decode_words(encode(Frame('reply', {}, {'report': numpy.ones(3, numpy.uint8)})))"
)
SIZES = (
    "from fedsim.data.builtin import BreastCancer; from fedsim.data.partition import SortedPartition; "
    "from fedsim.data.federation import outline; "
    "outline(BreastCancer(), SortedPartition(num_partitions=3), 0)"
)
NOISE = (
    "from fedsim.privacy import cost, calibrate, verify; from fedsim.protocol.batch import FULL; "
    "from fedsim.protocol.plan import Release; plan = ((Release(FULL, 1.0), 3),); "
    "calibrate.noise_multipliers(plan, [calibrate.Budget(100, 1.0, 1e-4)], 1e6)"
)
SIMULATION = "fedsim.scenario fedsim.simulation fedsim.algorithms"
NOT_LOADED = {
    "import silos.front.service, silos.__main__": "ray flwr server fedsim.simulation",
    "import shuffler.service, shuffler.__main__": f"ray flwr silos torch opendp server {SIMULATION}",
    "import fedsim, fedsim.secagg.reports": "cryptography torch flwr",
    "import fedsim, fedsim.cli.main": "flwr cryptography torch",
    "import fedsim.wire.connections, fedsim.wire.flower": "flwr torch",
    "import silos.shim": "torch ray pandas",
    "import fedsim.deployment.federation_edit": "flwr server torch numpy fedsim.data fedsim.algorithms",
    "from fedsim.common.process import HEAVY, lazily; lazily(*HEAVY)": "numpy",  # nor what is around them
    "import silos.__main__, shuffler.__main__": "torch pydantic numpy importlib.metadata",  # health
    "import fedsim.data.arrays, fedsim.data.inspection, fedsim.data.federation, fedsim.data.csv_table": (
        "torch sklearn pyarrow"
    ),
    SIZES: "torch sklearn pyarrow",  # sizes are known in advance
    FRAMES: "torch",
    NOISE: "dp_accounting",
    f"{QUICK}['privacy', 'quickstart']).exit_code == 0": (
        "ray flwr sklearn dp_accounting matplotlib pandas scipy.stats"
    ),
    f"{QUICK}['--help']).exit_code == 0": "torch ray flwr numpy pydantic",
    f"{QUICK}['simulate', 'quickstart', '--set', 'trials=1', '--set', 'runtime=inprocess']).exit_code == 0": (
        "ray flwr sklearn dp_accounting scipy.stats sympy torch._dynamo torch._inductor matplotlib.pyplot"
    ),
}


@pytest.mark.parametrize("statements", NOT_LOADED)
def test_what_is_not_needed_is_not_loaded(statements):
    assert_not_loaded(statements, NOT_LOADED[statements])


@pytest.mark.parametrize("party", ["silo", "shuffler"])
def test_a_health_check_by_the_command_line_loads_no_settings(party, tmp_path):
    (tmp_path / "party.yaml").write_text("{listen: {socket: none}}")
    asked = [party, "--config", str(tmp_path / "party.yaml"), "--health"]
    code = f"done = CliRunner().invoke(app, {asked}); assert (done.exit_code, done.stdout) == (1, '')"
    imports = "from typer.testing import CliRunner; from fedsim.cli.main import app"
    assert_not_loaded(f"{imports}\n{code}", "torch numpy pydantic silos.front shuffler.service")


def test_a_command_does_not_look_for_garbage_among_modules_that_it_loads():
    code = (
        "import gc, sys; from fedsim.cli.main import main; sys.argv[1:] = ['privacy', 'quickstart']\n"
        "try: main()\n"
        "finally: print(gc.get_stats()[2]['collections'])"
    )
    done = python("-c", code, paths=())
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["0"]), done.stderr
