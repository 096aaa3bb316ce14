"""A plug-in that looks for its silo's records everywhere finds them in one process, and not in its own."""

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from support.helpers import open_gate
from support.plug_in_folder import SGD, opened, sgd_offer, sgd_silo

from fedsim.isolated.confine import unavailable
from fedsim.problems.glm import LogisticRegression

SECRET = 0.7712538
CODE = """
import ctypes, gc, glob, importlib, os, socket, sys
import numpy as np
import torch

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

def connected(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as way:
        way.connect(path)
    return True

ATTEMPTS = [
    lambda: any(has(value) for value in gc.get_objects()),
    lambda: any(has(cell) for each in gc.get_objects() for cell in gc.get_referents(each)),
    lambda: frames(),
    lambda: others(),
    lambda: memory("self"),
    lambda: memory(os.getppid()),
    lambda: vm_read(),
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
    lambda: connected(f"{BASE}/silo.sock"),
    lambda: "silos.vault.records" in sys.modules and any(
        has(value) for value in gc.get_objects() if type(value).__module__ == "silos.vault.sums"),
    lambda: any(has(value) for module in list(sys.modules.values()) for value in vars(module).values()),
    lambda: bool(importlib.import_module("silos.vault.entropy")) and any(
        type(each).__name__ == "SystemEntropy" for each in gc.get_objects()),
]
"""
CODE += (
    SGD
    + """
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
)
NUMBERS = CODE.count("\n    lambda:")


def _code(base: Path) -> str:
    return CODE.replace("PLACE", repr((SECRET, str(base))))


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_no_attempt_finds_anything(tmp_path):
    path = sgd_silo(tmp_path, _code(tmp_path / "silos" / "silo-00"), max_rounds=100)
    arrays = dict(np.load(path.parent / "records.npz"))
    arrays["features"][0, 0] = SECRET
    np.savez(path.parent / "records.npz", **arrays)
    caller = opened(path)
    run = caller.admitted(sgd_offer(NUMBERS))["run"]
    for number in range(NUMBERS):
        answer = caller.asked(run, number, w=torch.full((5,), 1000.0 + number, dtype=torch.float64))["g"]
        assert not answer.any(), f"attempt {number} found what it looked for"
    assert NUMBERS >= 20
    caller.silo.close()


def test_in_one_process_they_do(tmp_path):
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
    for number in (0, 2, 7, 10, 11, 16):
        answer = gate.answer(number, {"w": torch.full((5,), 1000.0 + number, dtype=torch.float64)})["g"]
        found.append(bool(answer.any()))
    assert all(found), found
