"""`python -m fedsim` is the command line."""

import sys

from fedsim.cli.main import main

if __name__ == "__main__":
    sys.path.append(sys.path.pop(0))  # the folder that it is called in, whose torch.py is not meant
    sys.exit(main())
