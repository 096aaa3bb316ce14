"""The same transcript on every runtime, on a real Ray."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch

from fedsim.common.errors import InputError
from fedsim.report.comparison import compared, source_of
from fedsim.report.outcome import Results
from fedsim.scenario.load import load, parse
from fedsim.scenario.resolve import resolve
from fedsim.simulation import on_ray
from fedsim.simulation import trial as in_process

BREAST_CANCER = Path(__file__).parents[2] / "scenarios" / "breast_cancer.yaml"
SMALL = ["trials=2", "algorithm.num_rounds=8", "algorithm.batch={sampler: subsample, fraction: 0.5}"]


def collect(runtime: str, *overrides: str) -> Results:
    resolved = resolve(load(BREAST_CANCER, [*SMALL, *overrides, f"runtime.name={runtime}"]))
    results = Results()
    execute = on_ray.execute if runtime == "ray" else in_process.execute
    execute(resolved, results, lambda _: None)
    return results


@pytest.fixture(scope="module")
def reference():
    return collect("inprocess", "participation={name: uniform, num_silos: 4}")


@pytest.mark.parametrize("hosts", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_one_ray_host_is_bit_equal_to_in_process(hosts, reference):
    on_ray = collect("ray", "participation={name: uniform, num_silos: 4}", f"runtime.silo_hosts={hosts}")
    for number, trial in reference.trials.items():
        for variant, model in trial.models.items():
            assert torch.equal(on_ray.trials[number].models[variant], model)
        assert on_ray.trials[number].statements == trial.statements


@pytest.mark.slow
def test_two_ray_hosts_agree_to_rounding_and_keep_the_same_ledgers(reference):
    on_ray = collect("ray", "participation={name: uniform, num_silos: 4}", "runtime.silo_hosts=2")
    for number, trial in reference.trials.items():
        for variant, model in trial.models.items():
            torch.testing.assert_close(on_ray.trials[number].models[variant], model, rtol=1e-9, atol=1e-12)
        for theirs, ours in zip(on_ray.trials[number].statements, trial.statements, strict=True):
            # A broadcast that differs in the last bit has another digest; the first one is the same.
            assert (theirs.admitted, theirs.epsilon_spent) == (ours.admitted, ours.epsilon_spent)
            assert theirs.rounds == ours.rounds


def test_trials_differ_and_repeat(reference):
    first, second = (reference.trials[number].models["private"] for number in (0, 1))
    assert not torch.equal(first, second)
    again = collect("inprocess", "participation={name: uniform, num_silos: 4}")
    assert torch.equal(again.trials[1].models["private"], second)


@pytest.mark.slow
def test_a_refusal_inside_an_actor_arrives_as_one():
    from fedsim.common.errors import Refused

    tree = {
        "name": "diverging",
        "data": {"name": "synthetic", "link": "linear", "rows": 60, "features": 2},
        "partition": {"name": "iid", "num_partitions": 2},
        "problem": "linear_regression",
        "algorithm": {"name": "noisy_minibatch_sgd", "num_rounds": 50, "step_size": 1e3, "clip_norm": 1.0},
        "privacy": {"mechanism": "none"},
    }
    with pytest.raises(Refused, match=r"round \d+: .*lower the step size"):
        on_ray.execute(resolve(parse(tree)), Results(), lambda _: None)
    assert not ray_processes()


MARK = "FEDSIM_TEST_MARK"
PATIENCE = 300  # seconds: a busy machine fails no test


@pytest.fixture(autouse=True)
def marked(monkeypatch):
    """Processes started below a test inherit the mark, also those that outlive their parent."""
    monkeypatch.setenv(MARK, str(uuid.uuid4()))


def ray_processes() -> set[str]:
    """Living processes of a Ray started below this test; another Ray on the machine is not ours."""
    names = ("raylet", "gcs_server", "ray::", "ray/_private", "dashboard/agent")
    found = set()
    for process in psutil.process_iter():
        try:
            line, own = " ".join(process.cmdline()), process.environ().get(MARK) == os.environ[MARK]
        except psutil.Error:  # gone, a zombie, or another person's
            continue
        if own and any(name in line for name in names):
            found.add(line)
    return found


@contextmanager
def long_run(out: Path) -> Iterator[subprocess.Popen[str]]:
    arguments = ["simulate", str(BREAST_CANCER), "--runtime", "ray", "--out", str(out), "--set", "trials=2"]
    arguments += ["--set", "algorithm.num_rounds=30000", "--set", "report.evaluate_every=10"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "fedsim.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def interrupt(process: subprocess.Popen[str]) -> str:
    """Ctrl-C; the rest of what the process says until it ends."""
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE)
    return output


def listening_addresses(root: int) -> set[str]:
    found = set()
    for process in psutil.Process(root).children(recursive=True):
        for connection in process.net_connections(kind="inet"):
            if connection.status == psutil.CONN_LISTEN:
                found.add(connection.laddr.ip.removeprefix("::ffff:"))
    return found


@pytest.mark.slow
def test_ctrl_c_ends_a_run_before_its_trials_do_saves_what_there_is_and_leaves_no_process(tmp_path):
    with long_run(tmp_path / "run") as process:
        assert process.stdout is not None
        assert process.stdout.readline()  # the first measurement: Ray is up
        assert listening_addresses(process.pid) <= {"127.0.0.1", "::1"}
        assert listening_addresses(process.pid)
        assert ray_processes()
        output = interrupt(process)
    assert process.returncode == 130
    assert "Interrupted: 0 of 2 trials are complete and saved" in output
    assert (tmp_path / "run" / "report.html").exists()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert [silo["epsilon_guaranteed"] for silo in summary["privacy"]["silos"]] == pytest.approx(
        [1, 1, 2, 2, 4]
    )
    for silo in summary["privacy"]["silos"]:  # begun, and not known how far
        assert silo.get("epsilon_spent") is None
    assert "what was spent is not known" in summary["privacy"]["epsilon_spent_note"]
    with pytest.raises(InputError, match="no trial is complete"):
        compared([source_of(tmp_path / "run")])
    assert not ray_processes()


@pytest.mark.slow
def test_a_killed_worker_ends_the_run_in_one_line_and_what_was_measured_is_saved(tmp_path):
    with long_run(tmp_path / "run") as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        worker = next(p for p in _children(process.pid) if "ray::TrialWorker" in " ".join(p.cmdline()))
        worker.kill()
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "failed: a trial's worker is lost (worker died)" in output
    assert "Traceback" not in output
    assert "0 of 2 trials are complete and saved. To go on: fedsim simulate --resume" in output
    assert '"status": "interrupted"' in (tmp_path / "run" / "summary.json").read_text()
    assert not ray_processes()


@pytest.mark.slow
def test_ctrl_c_while_ray_starts_saves_nothing_and_leaves_no_process(tmp_path):
    with long_run(tmp_path / "run") as process:
        while not any("gcs_server" in " ".join(p.cmdline()) for p in _children(process.pid)):
            time.sleep(0.05)
        assert ray_processes()
        output = interrupt(process)
    assert process.returncode == 130
    assert "nothing was saved" in output
    assert list(tmp_path.iterdir()) == []
    assert not ray_processes()


def _children(root: int) -> list[psutil.Process]:
    alive = []
    for child in psutil.Process(root).children(recursive=True):
        try:
            child.cmdline()
        except psutil.Error:
            continue
        alive.append(child)
    return alive
