"""Whether a process has ended."""

import psutil


def gone(pid: int) -> bool:
    """Also a zombie: whoever inherits it may never reap it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
