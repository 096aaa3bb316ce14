"""What `fedsim deploy` says before anything is started."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import yaml
from flwr.supercore.control import ControlHttpClient
from support.deployed import SCENARIO
from typer.testing import CliRunner

from fedsim.cli.main import app
from fedsim.common.chain import RUN
from fedsim.common.errors import InputError
from fedsim.common.files import RECORD
from fedsim.common.store import Store
from fedsim.deployment import certs
from fedsim.deployment.flower import app as serverapp
from fedsim.deployment.flower import submit as submitting
from fedsim.deployment.flower.app import main
from fedsim.deployment.flower.control import Away, Control, Status
from fedsim.deployment.flower.submit import Line, Reader, of_words, write


@pytest.fixture
def place(tmp_path):
    certs.make(tmp_path, ["silo-1", "silo-2"])
    (tmp_path / "scenario.yaml").write_text(yaml.safe_dump(SCENARIO))
    for name in ("silo-1", "silo-2"):
        (tmp_path / name / "identity.pub").write_text(name.encode().hex().rjust(64, "0"))
    return tmp_path


def federation(place: Path) -> dict[str, Any]:
    silos = {
        name: {"identity": f"{name}/identity.pub", "node": f"{name}/node.pub"}
        for name in ("silo-1", "silo-2")
    }
    return {"silos": silos, "root_certificates": "server/ca.crt", "superlink": "127.0.0.1:1"}


def said(place: Path, tree: dict[str, Any], *more: str, code: int = 2) -> str:
    (place / "federation.yaml").write_text(yaml.safe_dump(tree))
    command = ["deploy", str(place / "scenario.yaml"), "--federation", str(place / "federation.yaml")]
    shown = CliRunner().invoke(app, [*command, "--out", str(place / "out"), *more])
    assert shown.exit_code == code, shown.output
    assert not (place / "out").exists()
    return " ".join(shown.output.split())


def test_every_silo_needs_a_node_of_its_own(place):
    tree = federation(place)
    del tree["silos"]["silo-2"]["node"]
    assert "federation.silos.silo-2.node" in said(place, tree)
    tree["silos"]["silo-2"]["node"] = "silo-1/node.pub"
    assert "is another silo's node too" in said(place, tree)
    tree["silos"]["silo-2"]["node"] = "silo-1/identity.pub"
    assert "as `fedsim certs` makes it" in said(place, tree)


def test_whom_to_trust_must_be_said(place):
    tree = federation(place)
    del tree["root_certificates"]
    assert "federation.root_certificates" in said(place, tree)


def test_the_servers_key_must_be_there(place):
    (place / "server" / "server.key").unlink()
    assert "server.key" in said(place, federation(place))


@pytest.mark.parametrize("address", ["superlink", "superlink:", ":8000", "superlink:http"])
def test_the_superlinks_address(place, address):
    assert "federation.superlink" in said(place, federation(place) | {"superlink": address})


def test_a_superlink_that_is_not_there(place):
    assert "a SuperLink that answers" in said(place, federation(place), "--superlink", "127.0.0.1:1")


def test_a_mistake_in_the_scenario_does_not_wait_for_silos(place):
    assert "algorithm.clip" in said(place, federation(place), "--set", "algorithm.clip=1")


def test_lines_are_read_once_they_are_whole(tmp_path):
    file = tmp_path / "progress"
    reader = Reader(file)
    assert reader.new() == []
    lines = [Line(1, 4, "round 1 of 4: 3 silos", words=False), of_words("checkpoint")]
    for line in lines:
        write(file, line)
    with file.open("a") as half:
        half.write('{"rounds": 2')
    assert reader.new() == lines
    assert reader.new() == []


def test_a_run_that_fails_elsewhere_may_have_released_something(place, monkeypatch):
    monkeypatch.setattr(submitting, "submit", lambda *given: Status("failed", "why"))
    output = said(place, federation(place), "--superlink", "127.0.0.1:1", code=1)
    assert "Nothing was released" not in output
    assert "--superlink 127.0.0.1:1 --resume" in output


def test_a_superlink_that_says_no_is_one_line(place, monkeypatch):
    def no(*given: object) -> None:
        request = httpx.Request("POST", "https://127.0.0.1:1")
        raise httpx.HTTPStatusError("no", request=request, response=httpx.Response(412, request=request))

    monkeypatch.setattr(ControlHttpClient, "ListNodes", no)
    assert "it answers 412" in said(place, federation(place), "--superlink", "127.0.0.1:1")


@pytest.mark.parametrize(("away", "word"), [(2, "completed"), (10**9, "away")])
def test_a_superlink_may_be_away_for_a_moment(tmp_path, away, word, monkeypatch):
    class Shaky:
        asked = 0

        def nodes(self) -> dict[bytes, str]:
            return {}

        def start(self, settings: object) -> int:
            return 1

        def status(self, run: int) -> Status:
            self.asked += 1
            if self.asked <= away:
                raise Away("superlink", "h:1", "a SuperLink that answers")
            return Status("completed", "")

        def stop(self, run: int) -> None: ...

    monkeypatch.setattr(submitting, "LOOK", 0.01)
    job = submitting.Job("breast_cancer", (), tmp_path / "federation.yaml", tmp_path / "out", False)
    assert submitting.submit(cast(Control, Shaky()), job, {}, 0.2, lambda line: None).word == word


@pytest.mark.parametrize("overrides", ["seed=7", '"seed=7"', "[7]"])
def test_overrides_by_flwr_run_are_a_list(overrides, tmp_path):
    context = SimpleNamespace(run_config={"scenario": "breast_cancer", "overrides": overrides})
    with pytest.raises(InputError, match="a JSON list of PATH=VALUE"):
        main(cast(Any, None), cast(Any, context))


def _asked_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What the run's process does that is submitted again: whether it resumes; none where it does nothing."""
    (place / "federation.yaml").write_text(yaml.safe_dump(federation(place)))
    resumed = list[bool]()
    monkeypatch.setattr(serverapp, "deploy", lambda *given: resumed.append(given[4]))
    given = {name: str(place / f"{name}.yaml") for name in ("scenario", "federation")}
    given |= {"out": str(place / "run"), "resume": "again"}
    main(cast(Any, None), cast(Any, SimpleNamespace(run_config=given)))
    return resumed


def test_a_run_that_is_submitted_again_goes_on_if_it_began(place, monkeypatch):
    assert _asked_again(place, monkeypatch) == [False]
    record = place / "run" / RECORD
    record.parent.mkdir()
    Store.make(record, RUN, "run", "{}")
    assert _asked_again(place, monkeypatch) == [True]
    record.write_bytes(b"damaged")
    assert _asked_again(place, monkeypatch) == [True]
    monkeypatch.setattr(serverapp, "state_of", lambda out: "ended")
    assert _asked_again(place, monkeypatch) == []


def test_what_is_kept_up_is_no_run_that_has_ended_or_is_given_up(place, monkeypatch):
    assert "one of the two" in said(place, federation(place), "--keep", "--give-up")
    monkeypatch.setattr("fedsim.report.resume.state_of", lambda out: "ended")
    assert "its run has ended; there is nothing to go on with" in said(place, federation(place), "--keep")


def test_an_evaluation_is_asked_for_and_a_run_given_up_where_there_is_one(place, monkeypatch):
    """Both go on with a directory, and neither waits for silos to say that it is none."""
    jobs = list[Any]()

    def submit(control: object, job: submitting.Job, *more: object) -> Status:
        jobs.append((job.resume, job.give_up, more[-1]))
        return Status("stopped", "by its operator")

    tree, at = federation(place) | {"min_silos": 2}, ("--superlink", "127.0.0.1:1")
    monkeypatch.setattr(submitting, "submit", submit)
    assert "--resume: True: one of --resume, --give-up" in said(place, tree, "--resume", "--give-up")
    (place / "out").mkdir()
    command = ["deploy", str(place / "scenario.yaml"), "--federation", str(place / "federation.yaml")]
    for option, there in (("--evaluate", "outstanding"), ("--give-up", "over")):
        asked = [*command, "--out", str(place / "out"), option, *at]
        refused = CliRunner().invoke(app, asked)
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
        assert f"{option}: " in refused.stderr
        with monkeypatch.context() as patched:
            patched.setattr("fedsim.report.resume.state_of", lambda out, there=there: there)
            assert CliRunner().invoke(app, asked).exit_code == 1
    assert jobs == [(True, False, 2), (False, True, 0)]


def test_what_is_refused_for_good_offers_no_resume(place, monkeypatch):
    refused = "ServerApp failed with exception: 1 of 2 silos answered, 2 are needed (silo-1: the policy)"
    monkeypatch.setattr(submitting, "submit", lambda *given: Status("failed", refused))
    for more in ([], ["--keep"]):
        output = said(place, federation(place), "--superlink", "127.0.0.1:1", *more, code=1)
        assert output == f"failed: {refused}"


def test_a_run_that_is_kept_up_waits_for_its_superlink(place, monkeypatch):
    """And goes on with what there is, also where the machine was started anew."""
    given = list[Any]()

    def submit(control: object, job: submitting.Job, keys: object, patience: float, *more: object) -> Status:
        given.append((job.resume, patience))
        if len(given) == 1:
            raise Away("superlink", "127.0.0.1:1", "a SuperLink that answers")
        return Status("stopped", "by its operator")

    monkeypatch.setattr(submitting, "submit", submit)
    monkeypatch.setattr(submitting, "PAUSE", 0.0)
    output = said(place, federation(place), "--superlink", "127.0.0.1:1", "--keep", code=1)
    assert given == [("again", float("inf"))] * 2
    assert "a SuperLink that answers; going on in 0 s" in output
    assert "stopped: by its operator" in output
