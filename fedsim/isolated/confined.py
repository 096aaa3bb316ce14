"""The first code of a child that runs plug-ins: gives up what the kernel can take, then runs one module.

It is a script, started by `fedsim.isolated.confine`, and imports the standard library alone. Its one argument
is a JSON object: `parent` (process id), `binds` ([[source, target], ...]), `path` (folders of modules),
`limits` ({name of a resource: number}) and `argv` (a module and its arguments). One byte on stdout says that
all of it is in force; otherwise stdout has the reason, and nothing else has run.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import runpy
import signal
import struct
import sys
from collections.abc import Sequence

READY = b"+"
_NOBODY = 65534
_NEW_USER, _NEW_SPACES = 0x10000000, 0x00020000 | 0x08000000 | 0x40000000  # mounts, System V IPC, network
_BIND, _RECURSIVE, _PRIVATE, _DETACH = 0x1000, 0x4000, 0x40000, 2
_READ_ONLY = 1 | 2  # nor setuid
# torch opens the first when it is imported, and takes the kernels for the processor that the second names
_FILES = ("/dev/urandom", "/proc/cpuinfo")
_AT_CWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_SETATTR = 442  # on every architecture below, as in <asm/unistd.h>
_SET_DEATH_SIGNAL, _SET_DUMPABLE, _SET_SECCOMP, _SET_NO_NEW_PRIVS = 1, 4, 22, 38

# Calls allowed, from <asm/unistd.h>. None creates a process, thread, socket or file, names another process,
# or changes a file; a call that the kernel gets later is denied too. In order: files, memory, signals of its
# own, time and waiting, itself, end.
_X86_64 = (
    *(0, 1, 3, 4, 5, 6, 8, 17, 19, 20, 21, 32, 33, 79, 89, 217, 262, 267, 269, 292, 332, 436, 439),
    *(9, 10, 11, 12, 25, 28, 13, 14, 15, 131, 7, 23, 24, 35, 96, 201, 202, 219, 228, 229, 230, 270, 271),
    *(39, 63, 97, 98, 100, 102, 104, 107, 108, 110, 186, 204, 309, 318, 334, 60, 231),
)
_AARCH64 = (
    *(63, 64, 57, 80, 62, 67, 65, 66, 23, 24, 17, 61, 79, 78, 48, 291, 436, 439),
    *(222, 226, 215, 214, 216, 233, 134, 135, 139, 132, 72, 73, 124, 101, 169, 98, 128, 113, 114, 115),
    *(172, 160, 163, 165, 153, 174, 176, 175, 177, 173, 178, 123, 168, 278, 293, 93, 94),
)
# {machine: (its number in the kernel's audit, calls, (openat, fcntl, prlimit64))}
_MACHINES = {
    "x86_64": (0xC000003E, _X86_64, (257, 72, 302)),
    "aarch64": (0xC00000B7, _AARCH64, (56, 25, 261)),
}
# What openat, fcntl and prlimit64 may be asked: (argument, mask, values). Opening for reading (a named pipe
# takes writes on a read-only mount); copies and flags of descriptors (F_SETOWN would signal any process of
# the same user); one's own limits.
_FORMS = ((2, 3, (0,)), (1, 0xFFFFFFFF, (0, 1, 2, 3, 1030)), (0, 0xFFFFFFFF, (0,)))
_LOAD, _EQUAL, _AND, _RETURN = 0x20, 0x15, 0x54, 0x06
_KILL, _ALLOW, _DENY = 0x80000000, 0x7FFF0000, 0x00050000 | 13  # denied: EACCES

_libc = ctypes.CDLL(None, use_errno=True)


def confine(parent: int, binds: Sequence[Sequence[str]], limits: dict[str, int]) -> None:
    """Confine this process for good; OSError or LookupError names the step that the kernel does not allow."""
    os.closerange(3, 1 << 20)
    os.umask(0o022)
    program = seccomp(platform.machine())
    privileged = _own_spaces()
    _private_root(binds)
    if privileged:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    _call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))
    _prctl(_SET_DUMPABLE, 0)
    _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)  # after the change of user, which would undo it
    if os.getppid() != parent:
        raise OSError(0, "the process that started this one has ended")
    for name, limit in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
    _prctl(_SET_NO_NEW_PRIVS, 1)
    held = ctypes.create_string_buffer(program)
    _prctl(_SET_SECCOMP, 2, struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(held)))


def seccomp(machine: str) -> bytes:
    """The filter of system calls, as the kernel's instructions; LookupError if this machine has no list."""
    if machine not in _MACHINES:
        raise LookupError(f"no list of system calls for {machine}, only for {', '.join(_MACHINES)}")
    audit, calls, guarded = _MACHINES[machine]
    code = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    for call in calls:
        code += [(_EQUAL, 0, 1, call), (_RETURN, 0, 0, _ALLOW)]
    for call, (argument, mask, values) in zip(guarded, _FORMS, strict=True):
        form = [(_LOAD, 0, 0, 16 + 8 * argument), (_AND, 0, 0, mask)]
        for value in values:
            form += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
        form.append((_RETURN, 0, 0, _DENY))
        code += [(_EQUAL, 0, len(form), call), *form]
    return b"".join(struct.pack("HBBI", *step) for step in [*code, (_RETURN, 0, 0, _DENY)])


def _own_spaces() -> bool:
    """Namespaces of its own: True by privilege, else in a user namespace where this user is alone."""
    try:
        _call("unshare", _NEW_SPACES)
    except PermissionError:
        maps = {"uid_map": f"{_NOBODY} {os.geteuid()} 1", "gid_map": f"{_NOBODY} {os.getegid()} 1"}
        _call("unshare", _NEW_USER | _NEW_SPACES)
        for name, text in {"setgroups": "deny", **maps}.items():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        return False
    return True


def _private_root(binds: Sequence[Sequence[str]]) -> None:
    """A root folder that holds `binds` and `_FILES`, read-only, and nothing else: no /tmp or home."""
    _mount("none", "/", None, _RECURSIVE | _PRIVATE, None)
    _mount("tmpfs", "/tmp", "tmpfs", 0, "size=1m,mode=755")
    os.mkdir("/tmp/old")
    _call("pivot_root", b"/tmp", b"/tmp/old")  # what the tmpfs hid in /tmp is seen again in /old/tmp
    os.chdir("/")
    for file in _FILES:
        os.mkdir(os.path.dirname(file))
        os.mknod(file)  # an empty one, to mount over
    for source, target in [*binds, *zip(_FILES, _FILES, strict=True)]:
        if target not in _FILES:
            os.makedirs(target, exist_ok=True)
        _mount(f"/old{source}", target, None, _BIND | _RECURSIVE, None)
        _read_only(target)  # at once: a folder is never made in a source
    _call("umount2", b"/old", _DETACH)
    os.rmdir("/old")
    _read_only("/")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None) -> None:
    texts = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _call("mount", *texts[:3], ctypes.c_ulong(flags), texts[3])


def _read_only(target: str) -> None:
    """Every mount at and below `target`."""
    wanted = struct.pack("QQQQ", _READ_ONLY, 0, 0, 0)
    _call("syscall", _MOUNT_SETATTR, _AT_CWD, target.encode(), _AT_RECURSIVE, wanted, ctypes.c_size_t(32))


def _prctl(option: int, value: int, third: object = 0) -> None:
    _call("prctl", option, ctypes.c_ulong(value), third, 0, 0)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def main() -> None:
    """Confine this process, say so, and run the module that its argument names."""
    plan = json.loads(sys.argv[1])
    try:
        confine(plan["parent"], plan["binds"], plan["limits"])
    except (OSError, LookupError) as error:
        os.write(1, str(error).encode())
        sys.exit(1)
    sys.path += plan["path"]
    sys.modules["dill"] = None  # type: ignore[assignment]  # torch imports it if it is there; here it fails
    sys.argv = sys.orig_argv = plan["argv"]
    os.write(1, READY)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
