"""What the kernel keeps from a child that runs plug-in code; each attempt succeeds in an unconfined one."""

import ctypes
import json
import os
import platform
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import torch
from support.refusals import ANY, refused

from fedsim.common.errors import Refused
from fedsim.common.plugins import listed
from fedsim.isolated import confine, confined
from fedsim.isolated.confine import Child, Limits, start
from tests.support.distribution import gone

REASON = confine.unavailable()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))
ROOT = os.geteuid() == 0
HERE = Path(__file__).parents[2]

ATTEMPTS = r'''
"""Attempts of a hostile plug-in: prints {attempt: how it failed, None where it succeeded}."""
import ctypes, fcntl, json, mmap, os, resource, signal, socket, sys, threading

place = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    """A system call by number: only the filter answers EACCES to arguments such as these."""
    ctypes.set_errno(0)
    libc.syscall(number, *arguments)
    if ctypes.get_errno() == 13:
        raise PermissionError("call", number)

def fork():
    if os.fork() == 0:
        os._exit(0)
    os.wait()

def execute():
    if os.posix_spawn(place["true"], [place["true"]], {}) > 0:
        os.wait()

def connect(kind, address):
    with socket.socket(kind, socket.SOCK_STREAM) as made:
        made.connect(address)

def descriptors():
    for number in range(3, 64):
        try:
            os.fstat(number)
            if os.read(number, 1) == b"x":
                return
        except OSError:
            pass
    raise OSError("none")

def thread():
    started = threading.Thread(target=int)
    started.start()
    started.join()

pid, state, plug_ins = place["pid"], place["state"], place["plug_ins"]
attempts = {
    "read the ledger": lambda: open(f"{state}/ledger").read(),
    "see its size": lambda: os.stat(f"{state}/ledger"),
    "list the state": lambda: os.listdir(state),
    "follow a link to it": lambda: open(f"{plug_ins}/link").read(),
    "read the users": lambda: open("/etc/passwd").read(),
    "write beside": lambda: open(f"{state}/new", "w"),
    "write to the plug-ins": lambda: open(f"{plug_ins}/new", "w"),
    "write to a named pipe": lambda: os.close(os.open(f"{plug_ins}/fifo", os.O_RDWR)),
    "change a mode": lambda: os.chmod(f"{plug_ins}/attempts.py", 0o644),
    "make a folder": lambda: os.mkdir(f"{plug_ins}/folder"),
    "TCP": lambda: connect(socket.AF_INET, ("127.0.0.1", place["port"])),
    "UDP": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)),
    "socket of a path": lambda: connect(socket.AF_UNIX, f"{state}/socket"),
    "abstract socket": lambda: connect(socket.AF_UNIX, place["abstract"]),
    "pair of sockets": socket.socketpair,
    "signal": lambda: os.kill(pid, 0),
    "signal by a descriptor": lambda: os.pidfd_open(pid),
    "signal by an owned pipe": lambda: fcntl.fcntl(0, fcntl.F_SETOWN, pid),
    "limits of others": lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE),
    "priority of others": lambda: os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid)),
    "processors of others": lambda: os.sched_setaffinity(pid, os.sched_getaffinity(pid)),
    "environment of others": lambda: open(f"/proc/{pid}/environ").read(),
    "memory of others": lambda: open(f"/proc/{pid}/maps").read(),
    "other files of /proc": lambda: open("/proc/meminfo").read(),
    "own descriptors": descriptors,
    "own environment": lambda: os.environ["SECRET"],
    "fork": fork,
    "run a program": execute,
    "threads": thread,
    **{name: (lambda number=number: call(number, -1, 0, 0, 0, 0)) for name, number in place["calls"].items()},
}

def outcome(attempt):
    try:
        attempt()
    except BaseException as error:
        return repr(error)

results = {name: outcome(attempt) for name, attempt in attempts.items()}
os.write(1, json.dumps(results).encode())
'''

# Calls that Python does not wrap, by machine, from <asm/unistd.h>.
CALLS = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "io_uring_setup": (425, 425),
    "prctl": (157, 167),
    "unshare": (272, 97),
    "bpf": (321, 280),
    "memfd_create": (319, 279),
    "clone3": (435, 435),
    "pidfd_getfd": (438, 438),
}


@pytest.fixture
def plug_ins(tmp_path):
    folder = tmp_path / "plug-ins"
    folder.mkdir()
    return folder


@pytest.fixture(
    params=["as it is", pytest.param("unprivileged", marks=pytest.mark.skipif(not ROOT, reason="is"))]
)
def run(request, plug_ins):
    """Starts `attempts` with the code given; also from a thread whose programs lack CAP_SYS_ADMIN."""

    def begin(code, *arguments, limits=None):
        (plug_ins / "attempts.py").write_text(code)

        def make():
            if request.param == "unprivileged":
                assert ctypes.CDLL(None).prctl(24, 21, 0, 0, 0) == 0  # PR_CAPBSET_DROP, of this thread
            return start(["attempts", *arguments], plug_ins, limits)

        with ThreadPoolExecutor(1) as pool:  # the thread has ended before the child is used
            children.append(pool.submit(make).result())
        return children[-1]

    children: list[Child] = []
    yield begin
    for child in children:
        with child:
            pass


@pytest.fixture
def place(plug_ins, tmp_path):
    """What there is to attack: a daemon's state, its sockets, and a process of the same user."""
    state = tmp_path / "state"
    state.mkdir()
    (state / "ledger").write_text("paid")
    (plug_ins / "link").symlink_to(state / "ledger")
    os.mkfifo(plug_ins / "fifo")
    abstract = f"\0fedsim-{os.getpid()}"
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as tcp,
        closing(socket.socket(socket.AF_UNIX)) as of_path,
        closing(socket.socket(socket.AF_UNIX)) as of_name,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim,
    ):
        for listener, address in ((of_path, str(state / "socket")), (of_name, abstract)):
            listener.bind(address)
            listener.listen()
        column = ("x86_64", "aarch64").index(platform.machine())
        yield {
            "pid": victim.pid,
            "state": str(state),
            "plug_ins": str(plug_ins),
            "port": tcp.getsockname()[1],
            "abstract": abstract,
            "true": shutil.which("true"),
            "calls": {name: numbers[column] for name, numbers in CALLS.items()},
        }
        victim.kill()


def test_every_attempt_is_denied(run, place, monkeypatch):
    monkeypatch.setenv("SECRET", "x")
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    os.write(writer, b"xx")
    child = run(ATTEMPTS, json.dumps(place))
    results = json.loads(child.stdout.read())
    assert [name for name, error in results.items() if error is None] == []

    command = [sys.executable, f"{place['plug_ins']}/attempts.py", json.dumps(place)]
    free = subprocess.run(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False, check=True)
    for end in (reader, writer):
        os.close(end)
    assert {name: error for name, error in json.loads(free.stdout).items() if error is not None} == {}
    assert len(results) == 29 + len(CALLS)


def test_a_child_takes_the_kernels_of_the_processor(run):
    """Else its last bits are others than those of the same code in the open."""
    child = run("import os, torch\nos.write(1, torch.backends.cpu.get_cpu_capability().encode())")
    assert child.stdout.read().decode() == torch.backends.cpu.get_cpu_capability()


def test_a_child_has_no_powers(run):
    child = run("input()")
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{child.pid}/status").read_text().splitlines())
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"], status["Threads"]) == ("1", "2", "1")
    if not ROOT:
        return
    privileged = Path(f"/proc/{child.pid}/ns/user").readlink() == Path("/proc/self/ns/user").readlink()
    assert status["Uid"].split() == ["65534" if privileged else "0"] * 4  # else 0 of no power outside


@pytest.mark.slow
def test_a_child_computes_as_usual(run):
    child = run(
        "import fedsim.algorithms, numpy, os, torch\n"
        "out = torch.vmap(torch.func.grad(lambda w: (w**2).sum()))(torch.ones(3, 2))\n"
        "assert torch.get_num_threads() == 1\n"
        "os.write(1, numpy.asarray(out).tobytes() + os.read(0, 4))"
    )
    child.stdin.write(b"then")
    assert child.stdout.read() == struct.pack("6f", *[2] * 6) + b"then"
    assert child.wait() == 0


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("while True: pass", {-signal.SIGXCPU, -signal.SIGKILL}),
        ("bytearray(1 << 31)", {1}),
        ("while True: os.dup(0)", {1}),
        ("resource.setrlimit(resource.RLIMIT_AS, (-1, -1))", {1}),
        # A system call of 32-bit programs has other numbers: getpid there is writev here.
        pytest.param(
            "run(mmap.mmap(-1, 4096, prot=7), bytes.fromhex('b814000000cd80c3'))",
            {-signal.SIGSYS, -signal.SIGSEGV},  # the latter where the kernel has none of them
            marks=pytest.mark.skipif(platform.machine() != "x86_64", reason="of that machine"),
        ),
    ],
)
def test_what_a_child_uses_is_limited(run, code, ends):
    child = run(
        "import ctypes, mmap, os, resource\n"
        "def run(memory, code):\n"
        "    memory.write(code)\n"
        "    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()\n" + code,
        limits=Limits(memory_bytes=1 << 30, cpu_s=1),
    )
    assert child.wait(30) in ends


@pytest.mark.parametrize("confined_child", [True, False])
def test_a_child_ends_with_the_process_that_started_it(plug_ins, confined_child):
    (plug_ins / "attempts.py").write_text("import time; time.sleep(60)")
    begin = (
        f"start(['attempts'], Path({str(plug_ins)!r}))"
        if confined_child
        else f"subprocess.Popen([sys.executable, {str(plug_ins / 'attempts.py')!r}], stdout=2)"
    )
    code = (
        "import os, signal, subprocess, sys\nfrom pathlib import Path\n"
        "from fedsim.isolated.confine import start\n"
        f"print({begin}.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    parent = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=HERE, check=False)
    pid = int(parent.stdout)
    late = time.monotonic() + (10 if confined_child else 0.3)
    while not gone(pid) and time.monotonic() < late:
        time.sleep(0.01)
    assert gone(pid) == confined_child
    if not confined_child:
        os.kill(pid, signal.SIGKILL)


def test_what_cannot_be_confined_is_not_run(plug_ins, monkeypatch):
    (plug_ins / "attempts.py").write_text("open(__file__ + '.ran', 'w')")
    with refused("plug_ins", ANY, "must be a folder"):
        start(["attempts"], plug_ins / "none")
    for hidden in (plug_ins / "records.csv", plug_ins.parent):
        with refused("plug_ins", ANY, "must lie outside"):
            start(["attempts"], plug_ins, hidden=[hidden])
    monkeypatch.setattr(confine, "_ENVIRONMENT", {"PYTHONHOME": "/none"})
    with pytest.raises(Refused, match="Python did not start"):
        start(["attempts"], plug_ins)
    monkeypatch.undo()
    monkeypatch.setattr(os, "getpid", lambda: 1)  # one of the last steps of confinement fails
    with pytest.raises(Refused, match=r"cannot be confined here: .*has ended"):
        start(["attempts"], plug_ins)
    assert [file.name for file in plug_ins.iterdir()] == ["attempts.py"]
    with pytest.raises(LookupError, match="no list of system calls for riscv64"):
        confined.seccomp("riscv64")


def test_names_are_read_without_an_import(plug_ins):
    (plug_ins / "attempts.py").write_text("raise SystemExit")
    for name in ("one", "two"):
        info = plug_ins / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            f"[fedsim.algorithms]\n{name} = attempts:It\n[other]\na = b:c\n"
        )
    assert listed(plug_ins) == {"fedsim.algorithms": {"one": "attempts:It", "two": "attempts:It"}}
    (info / "entry_points.txt").write_text("[fedsim.algorithms]\none = attempts:Other\n")
    with refused("entry point fedsim.algorithms:one", "attempts:It", "name taken twice"):
        listed(plug_ins)


def test_torch_finds_no_dill_in_a_child(run):
    """It would import it where it is installed, as with `datasets`; dill opens a file to write, and fails."""
    with run("import os, sys\nos.write(1, str(sys.modules.get('dill', 0)).encode())") as child:
        assert child.stdout.read() == b"None"
