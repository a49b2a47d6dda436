"""Calls into the kernel that the standard library does not wrap."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress

_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

_CAPABILITIES_PAST_FILES = (2, 8, 9, 16, 17, 18, 19, 21, 22, 27, 31, 38, 39)
"""DAC_READ_SEARCH SETPCAP LINUX_IMMUTABLE SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_ADMIN
SYS_BOOT MKNOD SETFCAP PERFMON BPF: with these root reaches the disk and the kernel without opening
a file, or changes files that it can only read."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def become_subreaper() -> None:
    """Adopt orphaned descendants, so that no ``setsid`` or double fork leaves the tree."""
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_no_new_privs() -> None:
    """Give up setuid programs for good; Landlock asks for it."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def give_up_capabilities() -> None:
    """Have root lose, with the next exec, the powers by which it could pass a file policy by."""
    if os.geteuid() == 0:
        for capability in _CAPABILITIES_PAST_FILES:
            # An older kernel does not know all of them, a container may not let us drop them.
            with suppress(OSError):
                _prctl(_PR_CAPBSET_DROP, capability)


def syscall(number: int, *arguments: object) -> int:
    """Make a raw system call.

    Raises:
        OSError: the kernel refused it.
    """
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise _last_error()
    return result


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero) != 0:
        raise _last_error()


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
