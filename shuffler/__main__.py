"""`python -m shuffler`: the shuffler without the rest of the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fedsim.wire.health import asked, check


def main() -> int:
    """The exit code; 2 with one line on stderr for what its operator can mend."""
    found = health(sys.argv[1:])
    return _main() if found is None else found


def health(arguments: Sequence[str]) -> int | None:
    """The exit code of a health check; None where the arguments are more than that (`fedsim.wire.health`)."""
    address = asked(arguments)
    return check(address, "standing", "shuffler") if address else None


def _main() -> int:
    import argparse

    from fedsim.wire.service import exit_code
    from shuffler.service import run

    given = argparse.ArgumentParser(prog="python -m shuffler", description="The shuffler.")
    given.add_argument("--config", type=Path, required=True, help="The shuffler's file (YAML).")
    flag = partial(given.add_argument, action="store_true")
    flag("--enrol", help="Make its keys, print their public halves, and end.")
    flag("--health", help="Check the health of the running shuffler, and end.")
    options = given.parse_args()
    return exit_code(lambda: run(options.config, enrolling=options.enrol, health=options.health))


if __name__ == "__main__":
    sys.exit(main())
