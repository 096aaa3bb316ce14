"""`python -m silos`: a silo's daemon without the rest of the command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedsim.common.plugins import load_none
from fedsim.common.process import HEAVY, lazily


def main() -> int:
    """The exit code; 2 with one line on stderr for what a person can mend."""
    given = argparse.ArgumentParser(prog="python -m silos", description="A silo's daemon.")
    given.add_argument("--config", type=Path, required=True, help="The silo's file (YAML).")
    given.add_argument("--enrol", action="store_true", help="Make the silo's ledger and identity, and end.")
    given.add_argument("--serve", action="store_true", help="After --enrol, go on as the daemon.")
    given.add_argument("--health", action="store_true", help="Ask the running daemon how it is, and end.")
    given.add_argument("--insecure-simulation", action="store_true", help="Allow seeded noise.")
    asked = given.parse_args()
    load_none()
    lazily(*HEAVY)
    from fedsim.wire.service import exit_code

    return exit_code(lambda: _run(asked))


def _run(asked: argparse.Namespace) -> int:
    from silos.config import load_config

    load_config(asked.config)  # before torch is loaded
    from silos.service import run

    return run(
        asked.config,
        enrol_first=asked.enrol,
        serve=asked.serve,
        health=asked.health,
        insecure_simulation=asked.insecure_simulation,
    )


if __name__ == "__main__":
    sys.exit(main())
