"""`python -m fedsim` is the command line."""

import sys

from fedsim.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
