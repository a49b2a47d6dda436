"""Confinement of this process's file access by Landlock, which needs no privilege.

Landlock governs opening, creating, removing, renaming and truncating. It does not govern changes
of metadata (``chmod``, ``chown``, ``utime``, extended attributes).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Iterable

from .system import give_up_capabilities, set_no_new_privs, syscall

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_FILE_ONLY = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_SCOPE_SIGNAL = 1 << 1

_RIGHTS_OF_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""ABI version to the number of file rights it knows, lowest bits first."""
FULL_ABI = max(_RIGHTS_OF_ABI)
"""First version that enforces every right we ask for."""
_SCOPED_ABI = 6


class _RulesetAttr(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def abi_version() -> int:
    """Return the Landlock version of the running kernel; 0 when there is none."""
    if sys.platform != "linux":
        return 0
    try:
        return syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    except OSError:
        return 0


def restrict(read: Iterable[str], write: Iterable[str]) -> None:
    """Confine this process, and all it will start, to the given paths for good.

    Where the kernel can, signals to processes outside are refused, too: a confined command must
    not end its own supervisor. Root loses the capabilities that would make all this moot.

    Args:
        read: Paths to read and execute below.
        write: Paths to change below, too. Canonical ones: what is no link when it is granted must
            not have become one since the grant was decided.

    Raises:
        OSError: the kernel has no Landlock, or a path does not exist or leads through a link.
    """
    abi = abi_version()
    if abi == 0:
        raise OSError(0, "this kernel does not offer Landlock")
    handled = (1 << _RIGHTS_OF_ABI[min(abi, FULL_ABI)]) - 1
    ruleset = _create_ruleset(abi, handled)
    try:
        for path in read:
            _grant(ruleset, path, handled & _READ)
        for path in write:
            _grant(ruleset, path, handled)
        give_up_capabilities()
        set_no_new_privs()
        syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _create_ruleset(abi: int, handled: int) -> int:
    scoped = _SCOPE_SIGNAL if abi >= _SCOPED_ABI else 0
    attr = _RulesetAttr(handled_access_fs=handled, scoped=scoped)
    size = 24 if abi >= _SCOPED_ABI else 8
    return syscall(_CREATE_RULESET, ctypes.byref(attr), ctypes.c_size_t(size), ctypes.c_uint32(0))


def _grant(ruleset: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _refuse_detour(fd, path)
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _FILE_ONLY
        attr = _PathBeneathAttr(allowed_access=rights, parent_fd=fd)
        syscall(
            _ADD_RULE,
            ctypes.c_int(ruleset),
            ctypes.c_int(_RULE_PATH_BENEATH),
            ctypes.byref(attr),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(fd)


def _refuse_detour(fd: int, path: str) -> None:
    """Fail when an open path is not where its name says: a folder on the way is a link by now."""
    try:
        real = os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return  # no /proc, so nobody can tell
    if real != path or stat.S_ISLNK(os.fstat(fd).st_mode):
        raise OSError(errno.ELOOP, f"{path} is a link, or leads through one")
