"""`python -m fedsim` is the command line."""

from fedsim.cli.main import main

if __name__ == "__main__":
    main()
