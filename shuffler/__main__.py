"""`python -m shuffler`: the shuffler without the rest of the command line."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from fedsim.wire.health import asked, check


def main() -> int:
    """The exit code; 2 with one line on stderr for what its operator can mend."""
    address = asked(sys.argv[1:])
    return check(address, "standing", "shuffler") if address else _main()


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
