"""A plug-in that looks for its silo's records everywhere finds them in one process, and not in its own."""

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import yaml
from support.deployed import Caller, enrolled, resolved_of, write_silos
from support.helpers import open_gate
from support.plug_in_folder import plug_in_folder
from test_plug_in_processes import _offer

from fedsim.isolated.confine import unavailable
from fedsim.problems.glm import LogisticRegression
from silos.silo import Silo

SECRET = 0.7712538
CODE = """
import builtins, ctypes, gc, glob, importlib, mmap, multiprocessing, os, pickle, resource, signal, socket
import subprocess, sys, threading, traceback
from dataclasses import dataclass
import numpy as np
import torch
from fedsim import Query, Round

SECRET, BASE = PLACE

def has(value):
    if isinstance(value, torch.Tensor):
        value = value.detach().double().numpy()
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return bool(np.isclose(value, SECRET, rtol=0, atol=1e-9).any())
    if isinstance(value, (bytes, bytearray, memoryview)):
        return np.float64(SECRET).tobytes() in bytes(value) or b"-".join([b"fedsim", b"silo"]) in bytes(value)
    return False

def read(path):
    with open(path, "rb") as file:
        return has(file.read(1 << 24))

def frames():
    frame = sys._getframe()
    while frame is not None:
        if any(has(value) for value in frame.f_locals.values()):
            return True
        frame = frame.f_back
    return False

def others():
    return any(has(value) for frame in sys._current_frames().values() for value in frame.f_locals.values())

def memory(pid):
    found = False
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in maps:
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            if "rw" in line and last - first < 1 << 27:
                mem.seek(first)
                found |= has(mem.read(last - first))
    return found

def vm_read():
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(4096)
    class Vec(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
    own, far = Vec(ctypes.addressof(buffer), 4096), Vec(ctypes.addressof(buffer), 4096)
    return libc.process_vm_readv(os.getppid(), ctypes.byref(own), 1, ctypes.byref(far), 1, 0) > 0

def traced():
    return ctypes.CDLL(None).ptrace(16, os.getppid(), None, None) == 0

def killed():
    os.kill(os.getppid(), 0)
    return True

def descriptors():
    for number in range(3, 64):
        try:
            os.fstat(number)
        except OSError:
            continue
        if number > 4:
            return True
    return False

def connected(kind, address):
    with socket.socket(kind, socket.SOCK_STREAM) as way:
        way.settimeout(1)
        way.connect(address)
    return True

def child():
    return bool(subprocess.run(["/bin/true"]).returncode == 0)

def forked():
    if os.fork() == 0:
        os._exit(0)
    return True

def written():
    with open(f"{BASE}/stolen", "w") as file:
        file.write("x")
    return True

ATTEMPTS = [
    lambda: any(has(value) for value in gc.get_objects()),
    lambda: any(has(cell) for each in gc.get_objects() for cell in gc.get_referents(each)),
    frames,
    others,
    lambda: memory("self"),
    lambda: memory(os.getppid()),
    vm_read,
    traced,
    killed,
    descriptors,
    lambda: read(f"{BASE}/records.npz"),
    lambda: read(f"{BASE}/silo.yaml"),
    lambda: read(f"{BASE}/state/ledger.sqlite"),
    lambda: any(read(path) for path in glob.glob(f"{BASE}/**", recursive=True) if os.path.isfile(path)),
    lambda: os.path.exists(BASE),
    lambda: any(read(path) for path in glob.glob("/dev/shm/*")),
    lambda: any(BASE in value for value in os.environ.values()),
    lambda: any(BASE in argument for argument in sys.orig_argv),
    lambda: BASE in open("/proc/self/mountinfo").read(),
    lambda: bool(os.listdir(f"/proc/{os.getppid()}")),
    lambda: connected(socket.AF_UNIX, f"{BASE}/silo.sock"),
    lambda: connected(socket.AF_INET, ("127.0.0.1", 9)),
    lambda: bool(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
    child,
    forked,
    written,
    lambda: bool(multiprocessing.shared_memory.SharedMemory(create=True, size=8)),
    lambda: "silos.records" in sys.modules and any(
        has(value) for value in gc.get_objects() if type(value).__module__ == "silos.sums"),
    lambda: bool(threading.Thread(target=print).start() or True),
    lambda: any(has(value) for module in list(sys.modules.values()) for value in vars(module).values()),
    lambda: bool(resource.prlimit(os.getppid(), resource.RLIMIT_CORE)),
    lambda: bool(importlib.import_module("silos.entropy")) and any(
        type(each).__name__ == "SystemEntropy" for each in gc.get_objects()),
]

@dataclass(frozen=True)
class Sgd:
    num_rounds: int
    clip_norm: float
    linear = True

    def server(self, w, problem, public, rng):
        for _ in range(self.num_rounds):
            mean = yield Round({"w": w}, answer=w)
            w = problem.descend(w, mean["g"], 0.5)
        return w

    def silo(self, problem, broadcast, ask, memory):
        w = broadcast["w"]
        number = int(w.flatten()[0].item()) - 1000
        answer = ask(Query("gradient", (w,), self.clip_norm))
        if not 0 <= number < len(ATTEMPTS):
            return {"g": answer}
        try:
            found = ATTEMPTS[number]()
        except BaseException:
            found = False
        return {"g": answer * 0 + float(found)}
"""
NUMBERS = CODE.split("ATTEMPTS = [")[1].split("\n]\n")[0].count("\n    lambda:") + sum(
    f"\n    {name},\n" in CODE
    for name in (
        "frames",
        "others",
        "vm_read",
        "traced",
        "killed",
        "descriptors",
        "child",
        "forked",
        "written",
    )
)


def _code(base: Path) -> str:
    return CODE.replace("PLACE", repr((SECRET, str(base))))


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_no_attempt_finds_anything(tmp_path: Path) -> None:
    resolved = resolved_of()
    path = write_silos(tmp_path / "silos", resolved, policy={"plug_ins": ["theirs_sgd"], "max_rounds": 100})[
        0
    ]
    arrays = dict(np.load(path.parent / "records.npz"))
    arrays["features"][0, 0] = SECRET
    np.savez(path.parent / "records.npz", **arrays)
    tree = yaml.safe_load(path.read_text())
    tree["plug_in_folder"] = str(plug_in_folder(tmp_path / "plug-ins", _code(path.parent), theirs_sgd="Sgd"))
    path.write_text(yaml.safe_dump(tree))
    caller = Caller(Silo.open(enrolled([path])[0]))
    run = caller.admitted(_offer(NUMBERS))["run"]
    for number in range(NUMBERS):
        answer = caller.asked(run, number, w=torch.full((5,), 1000.0 + number, dtype=torch.float64))["g"]
        assert not answer.any(), f"attempt {number} found what it looked for"
    assert NUMBERS >= 30
    caller.silo.close()


def test_in_one_process_they_do(tmp_path: Path) -> None:
    """Else the test above could not fail."""
    (tmp_path / "records.npz").write_bytes(np.float64(SECRET).tobytes())
    module = ModuleType("theirs_here")
    sys.modules["theirs_here"] = module
    try:
        exec(compile(_code(tmp_path), "theirs_here", "exec"), module.__dict__)
    finally:
        del sys.modules["theirs_here"]
    problem = LogisticRegression(5)
    features = np.full((10, 5), 0.25)
    features[0, 0] = SECRET
    gate = open_gate([(features, np.ones(10))], problem, module.Sgd(NUMBERS, 1.0))
    found = []
    for number in (0, 2, 6, 8, 10, 14, 21, 25):
        answer = gate.answer(number, {"w": torch.full((5,), 1000.0 + number, dtype=torch.float64)})["g"]
        found.append(bool(answer.any()))
    assert sum(found) >= 4
