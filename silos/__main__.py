"""`python -m silos`: a silo's daemon without the rest of the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedsim.wire.health import asked, check

if TYPE_CHECKING:
    import argparse


def main() -> int:
    """The exit code; 2 with one line on stderr for what its operator can mend."""
    found = health(sys.argv[1:])
    return _main() if found is None else found


def health(arguments: Sequence[str]) -> int | None:
    """The exit code of a health check; None where the arguments are more than that (`fedsim.wire.health`)."""
    address = asked(arguments)
    return check(address, "greeting", "silo") if address else None


def _main() -> int:
    import argparse

    from fedsim.common.plugins import load_none
    from fedsim.common.process import HEAVY, lazily

    given = argparse.ArgumentParser(prog="python -m silos", description="A silo's daemon.")
    given.add_argument(
        "--config", dest="file", metavar="CONFIG", type=Path, required=True, help="The silo's file (YAML)."
    )
    flag = partial(given.add_argument, action="store_true")
    flag("--enrol", dest="enrol_first", help="Make the silo's ledger and identity, and end.")
    flag("--dry-run", help="With --enrol: show what it fixes, write nothing.")
    flag("--serve", help="After --enrol, go on as the daemon.")
    flag("--health", help="Ask the running daemon how it is, and end.")
    flag("--insecure-simulation", help="Allow seeded noise.")
    options = given.parse_args()
    load_none()
    lazily(*HEAVY)
    from fedsim.wire.service import exit_code

    return exit_code(lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    from silos.front.config import load_config

    load_config(options.file)  # before torch is loaded
    from silos.front.service import run

    return run(**vars(options))  # each option's `dest` is an argument of `run`


if __name__ == "__main__":
    sys.exit(main())
