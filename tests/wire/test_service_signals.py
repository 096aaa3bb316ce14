"""A service ends at a signal that interrupts nothing."""

import subprocess
import sys

SERVICE = """
import signal, socket, tempfile, threading
from fedsim.wire import service
from fedsim.wire.daemon import Bounds, Daemon

class Nobody:
    def answer(self, frame):
        return frame

    def tend(self):
        return True

def elsewhere():  # another thread takes the signal: the wait of the first thread is not interrupted
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    daemon = Daemon(Nobody(), listener, Bounds(100))
    threading.Timer(0.3, elsewhere).start()
    print(service.serve(daemon), signal.set_wakeup_fd(-1))
"""


def test_a_signal_taken_by_another_thread_ends_the_wait_for_clients():
    told = subprocess.run([sys.executable, "-c", SERVICE], capture_output=True, text=True, timeout=60)
    assert (told.stdout, told.returncode) == ("True -1\n", 0), told.stderr
