"""What is wrong without a look at records is said before anything heavy is loaded."""

import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.scenarios import invoke, refusal

from fedsim.common import process
from fedsim.common.errors import InputError
from fedsim.common.process import check_reachable
from fedsim.scenario import load

HEAVY = ("torch._C", "scipy.stats._stats_py", "scipy.special._ufuncs", "sklearn", "pandas", "pyarrow", "ray")
HEAVY = (*HEAVY, "flwr")
MISSING = "data={name: csv, path: no.csv, target: y, schema: s.yaml}"
REFUSED = [
    ["simulate", "quickstart", "--set", "algorithm.clip_nrom=1"],
    ["simulate", "quickstart", "--set", "algorithm.num_rounds=many"],
    ["simulate", "missing.yaml"],
    ["simulate", "quickstart", "--set", MISSING],
    ["simulate", "quikstart"],
    ["simulate", "quickstart", "--set", "algorithm.name=noisy"],
    ["simulate", "quickstart", "--address", "127.0.0.1:1"],
    ["simulate", "quickstart", "--set", "trials"],
    ["simulate", "quickstart", "--out", "full"],
    ["simulate", "quickstart", "--set", "privacy.theorem=experiments"],
    ["simulate", "mlp_digits_sweep"],
    ["sweep", "quickstart", "--set", "sweep={grid: {privacy.epsilon: [0]}}"],
    ["sweep", "quickstart", "--address", "127.0.0.1:1", "--set", "sweep={grid: {seed: [1]}}"],
    ["privacy", "quickstart", "--set", "privacy.epsilon=0"],
    ["audit", "quickstart", "--set", "x=1"],
    ["bounds", "quickstart", "--set", "x=1"],
    ["up", "quickstart", "--out", "full"],
    ["deploy", "nothing", "--federation", "f.yaml", "--out", "new"],
    ["silo", "--config", "silo.yaml"],
]


def test_a_refusal_loads_neither_torch_nor_ray_nor_a_table_reader(tmp_path: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from fedsim.common.process import HEAVY, lazily\n"
        "lazily(*HEAVY); from fedsim.cli.main import app\n"
        f"for number, arguments in enumerate({REFUSED!r}):\n"
        "    done = CliRunner().invoke(app, arguments)\n"
        f"    heavy = [module for module in {HEAVY!r} if module in sys.modules]\n"
        "    print(number, done.exit_code, len(done.output.splitlines()), heavy)\n"
    )
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").touch()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.splitlines() == [f"{number} 2 1 []" for number in range(len(REFUSED))]


def test_a_missing_table_is_said_with_where_it_may_stand() -> None:
    line = refusal("simulate", "quickstart", "--set", MISSING)
    assert re.search(r"data.schema: '.*s.yaml': no such file, nor .* in the data folder .*FEDSIM_DATA", line)


def test_a_command_reads_its_scenario_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Mock(side_effect=load.read)
    monkeypatch.setattr(load, "read", read)
    invoke("privacy", "quickstart")
    assert read.call_count == 1


def test_a_library_runs_at_its_first_use_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_one").mkdir()
    (tmp_path / "slow_one" / "__init__.py").write_text("import slow_one.inner\nasked = []\nvalue = 3\n")
    (tmp_path / "slow_one" / "inner.py").write_text("import slow_one\nearly = hasattr(slow_one, 'value')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    process.lazily("slow_one", "no_such_library")
    import slow_one

    assert "slow_one.inner" not in sys.modules
    assert slow_one.value == 3
    assert slow_one.inner.early is False
    assert type(slow_one).__name__ == "module"
    with pytest.raises(AttributeError):
        _ = slow_one.absent
    assert "no_such_library" not in sys.modules


def test_a_library_that_cannot_run_says_so_whenever_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_one.py").write_text("import nothing_of_the_kind\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    process.lazily("broken_one")
    import broken_one

    with pytest.raises(ModuleNotFoundError, match="nothing_of_the_kind"):
        _ = broken_one.value
    assert "broken_one" not in sys.modules


@pytest.mark.parametrize("address", ["127.0.0.1:1", "host:port", "127.0.0.1:99999999"])
def test_an_address_where_nobody_listens_is_refused(address: str) -> None:
    with pytest.raises(InputError) as caught:
        check_reachable(address, "--address")
    assert (caught.value.field, caught.value.value) == ("--address", address)
