"""SIGKILL to the processes of deployed runs, again and again: `kill_runs.py --help`.

Daemons, the server's process and, with sums, the shuffler are processes of their own. Between server and
daemons a tap keeps every request and every byte of its answer before it goes on; a daemon that was killed and
started again is asked again, by a client of the command's own, for a round that it had answered. When a run
has ended, or was given up, no round of it was answered in two ways, all that were answered are in the silos'
ledgers, the shuffler released each round at most once, and no silo holds a reservation. Prints counts as
JSON; the exit code is 1 if anything was violated.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # pytest has it on its path
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from support.channels import enrolled_federation
from support.daemons import PATIENCE, Daemon, daemons, short_folder
from support.deployed import SCENARIO
from support.one_server import check_transcript
from support.pooled import PRIVACY, pooled_federation
from support.shuffler_process import shuffler_process
from support.tap import Tap, tapped
from typer.testing import CliRunner

from fedsim.cli.main import app
from fedsim.common.errors import InputError, Lost, Refused
from fedsim.common.files import RECORD
from fedsim.deployment.federation_file import Federation, parse_federation
from fedsim.deployment.run import deploy, give_up
from fedsim.report.resume import state_of
from fedsim.scenario.load import parse
from fedsim.scenario.resolve import resolve
from fedsim.secagg.shuffling import Request
from fedsim.wire.frames import head_of, opened
from server.sockets import Sockets

ROUNDS = 20
POLICY = {"lifetime": {"epsilon": 20.0, "delta": 0.01, "expires": "2999-12-31"}}
TREE: dict[str, Any] = {
    **SCENARIO,
    "algorithm": {**SCENARIO["algorithm"], "num_rounds": ROUNDS},
    "privacy": {"epsilon": 0.5, "delta": 1e-6},  # so that a silo's account is enough for many runs
}
SHUFFLER = "shuffler"
LOST, LATER, WRONG = 3, 4, 5  # exit codes of a server
_fork = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload(
    ["__main__", "silos.front.service", "support.shuffler_process", "fedsim.deployment.run"]
)


def _serve(tree: dict[str, Any], federation: Federation, out: Path, gate: Any, said: Path) -> None:
    """The server's process. The gate has how many rounds it may play by now, and how many it has played."""

    def wait(step: Any) -> None:
        gate[1] = step.rounds
        while step.rounds >= gate[0]:
            time.sleep(0.002)

    with said.open("a") as stream:
        os.dup2(stream.fileno(), 2)
    try:
        with Sockets(federation.addresses) as channel:
            deploy(parse(tree), federation, channel, out, state_of(out) == "begun", wait)
    except (InputError, Refused) as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        sys.exit(LOST if isinstance(error, Lost) else LATER if isinstance(error, Refused) else WRONG)


@dataclass
class Parties:
    """A federation whose processes run, and the way of its server to them.

    Attributes:
        federation: as the server knows it: taps stand in for daemons.
        parties: the daemons, by name, and the shuffler.
    """

    folder: Path
    tree: dict[str, Any]
    federation: Federation
    parties: dict[str, Daemon]
    taps: dict[str, Tap]
    rng: random.Random
    count: Counter[str] = field(default_factory=Counter)

    @property
    def silos(self) -> list[str]:
        return [name for name in self.parties if name != SHUFFLER]

    def run(self, number: int, kills: int) -> None:
        """One run, and so many kills where it is not lost before; AssertionError if something is wrong."""
        out, gate, left = self.folder / f"run-{number}", _fork.Array("l", [2, 0]), kills
        given = self.tree, self.federation, out, gate, self.folder / "said"
        until = time.monotonic() + 20 * PATIENCE
        while not _ended(out) and state_of(out) != "over":
            assert time.monotonic() < until, "the run does not end"
            server = _fork.Process(target=_serve, args=given)
            server.start()
            while left and self._moment(server, gate):
                for name in self._victims()[:left]:
                    left -= self._killed(name, server)
                gate[0] += self.rng.randrange(2 * ROUNDS // kills + 1) if left else ROUNDS
            server.join(max(0.0, until - time.monotonic()))
            assert server.exitcode is not None, "the run does not end"
            assert server.exitcode != WRONG, (self.folder / "said").read_text()[-2000:]
            self.count[f"servers with exit code {server.exitcode}"] += 1
        self.count["runs"] += 1
        self.count["runs that were lost"] += state_of(out) == "over"
        if self._open_runs() and state_of(out) == "over":  # its silos were not all there to be told
            self.count["runs given up by hand"] += 1
            with Sockets(self.federation.addresses) as channel:
                give_up(parse(self.tree), self.federation, channel, out)
        self.check()

    def _moment(self, server: BaseProcess, gate: Any) -> bool:
        """Wait for some answers, however slow the machine is, and for a moment; False if the server ends."""
        goal = self._seen + self.rng.choice([0, 0, 1, 2, 3, 5, 8])
        while server.is_alive() and self._seen < goal and gate[1] < gate[0]:
            time.sleep(0.002)
        server.join(self.rng.uniform(0, 0.05))
        return server.exitcode is None

    @property
    def _seen(self) -> int:
        return sum(len(tap.seen) for tap in self.taps.values())

    def _victims(self) -> list[str]:
        """One or two; the shuffler less often, since the run may be lost with it."""
        names = ["server", *self.silos]
        if SHUFFLER in self.parties and self.rng.random() < 0.5:
            names.append(SHUFFLER)
        return self.rng.sample(names, self.rng.choice([1, 1, 2]))

    def _killed(self, name: str, server: BaseProcess) -> bool:
        """Kill one and see that it died of it; a daemon is started again. False if it has ended itself."""
        if name == "server":
            server.kill()
            server.join(PATIENCE)
            if server.exitcode != -signal.SIGKILL:
                return False
        else:
            daemon = self.parties[name]
            os.kill(daemon.pid, signal.SIGKILL)
            assert daemon.wait() == -signal.SIGKILL
            daemon.start()
            if name != SHUFFLER:
                self._ask_again(name)
        self.count[f"kills of {name.split('-')[0]}"] += 1
        self.count["kills"] += 1
        return True

    def _ask_again(self, name: str) -> None:
        """Ask a silo for a round that it has answered; `check` looks at what it says."""
        asks = [seen.request for seen in self.taps[name].seen if _told(seen.answer)[0] == "reply"]
        if asks:
            address = self.federation.addresses[name]
            with Sockets({name: address}) as channel:
                assert channel.exchange({name: self.rng.choice(asks[-3:])}, PATIENCE), (
                    f"{name} does not answer"
                )

    def check(self) -> None:
        """What the taps have seen is in the ledgers, no round has two answers, and nothing is reserved."""
        for name in self.silos:
            received = defaultdict[tuple[str, int], list[bytes]](list)
            for request, answer in self.taps[name].seen:
                kind, head = _told(request)
                if kind == "ask" and _told(answer)[0] != "refusal":
                    received[head["run"], head["round"]].append(answer)
            check_transcript(received, {run["run"]: run["rounds"] for run in self._ledger(name)["runs"]})
        assert not self._open_runs(), f"open runs are left: {self._open_runs()}"
        releases = defaultdict[tuple[str, int], set[bytes]](set)
        for request, answer in self.taps[SHUFFLER].seen if SHUFFLER in self.taps else []:
            if _told(answer)[0] == "shuffled":
                context = Request.read(opened(request)[0]).context
                releases[context.run, context.round].add(answer)
        assert all(len(answers) == 1 for answers in releases.values()), "a round was released twice"

    def _ledger(self, name: str) -> dict[str, Any]:
        """What `fedsim ledger show --json` tells of a silo."""
        found = CliRunner().invoke(app, ["ledger", "show", str(self.parties[name].home / "state"), "--json"])
        assert found.exit_code == 0, found.output
        return json.loads(found.stdout)

    def _open_runs(self) -> dict[str, list[str]]:
        found = {
            name: [run["run"] for run in self._ledger(name)["runs"] if run["open"]] for name in self.silos
        }
        return {name: runs for name, runs in found.items() if runs}


def _ended(out: Path) -> bool:
    return (out / RECORD).is_file() and state_of(out) not in ("begun", "over")


def _told(frame: bytes) -> tuple[str, Mapping[str, Any]]:
    """Kind and head; nothing of what is no whole frame."""
    with suppress(Refused):
        return head_of(opened(frame)[0])
    return "", {}


@contextmanager
def running(sums: bool, rng: random.Random) -> Iterator[Parties]:
    """Three silos and, with sums, a shuffler, enrolled and started."""
    with short_folder() as folder, ExitStack() as stack:
        if sums:
            tree = {**TREE, "privacy": {**PRIVACY, **TREE["privacy"]}}
            made = pooled_federation(folder, parse(tree), seeded=False, policy=POLICY)
            enrolled, known = made.enrolled, made.federation.model_dump(mode="json", exclude_none=True)
        else:
            tree, enrolled = (
                TREE,
                enrolled_federation(folder, resolve(parse(TREE)), seeded=False, policy=POLICY),
            )
            known = enrolled.federation.model_dump(mode="json", exclude_none=True)
        parties: dict[str, Daemon] = dict(stack.enter_context(daemons(*enrolled.files)))
        if sums:
            parties[SHUFFLER] = stack.enter_context(shuffler_process(made.shuffler_file))
        taps = {}
        for name, party in parties.items():
            entry = known["shuffler"] if name == SHUFFLER else known["silos"][name]
            taps[name] = stack.enter_context(tapped(folder / f"t-{name}", party.socket))
            entry["socket"] = str(folder / f"t-{name}")
        yield Parties(folder, tree, parse_federation(known), parties, taps, rng)


def killed_runs(sums: bool, runs: int, kills: int, seed: int) -> Counter[str]:
    """At least so many runs and so many kills in them; AssertionError if anything is not as it must be."""
    with running(sums, random.Random(seed)) as parties:
        while parties.count["runs"] < runs or parties.count["kills"] < kills:
            parties.run(parties.count["runs"], -(-kills // runs))
        seen = [_told(each.answer)[0] for name in parties.silos for each in parties.taps[name].seen]
        parties.count["replies seen"] = seen.count("reply")
        return parties.count


def main() -> int:
    """Kill, check, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sums", action="store_true", help="secure aggregation: the shuffler is killed too")
    given = parser.parse_args()
    start = time.monotonic()
    try:
        count, violation = killed_runs(given.sums, given.runs, given.kills, given.seed), None
    except AssertionError:
        count, violation = Counter(), traceback.format_exc()
    seconds = round(time.monotonic() - start)
    print(json.dumps({**count, "seconds": seconds, "violation": violation}, indent=2))
    return int(violation is not None)


if __name__ == "__main__":
    sys.exit(main())
