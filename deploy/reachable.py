"""Exit code 0 if something listens at this port: `reachable.py PORT`."""

import socket
import sys

socket.create_connection(("127.0.0.1", int(sys.argv[1])), 3).close()
