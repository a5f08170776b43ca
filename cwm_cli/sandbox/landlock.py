"""Landlock: the kernel's own word that a process opens no file, whatever system calls it makes."""

import errno
import struct

from cwm_cli.sandbox import linux

_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights on files each version of Landlock knows; later ones know no more."""

_TCP_SINCE, _SCOPES_SINCE = 4, 6
_BIND_AND_CONNECT = 0b11
_SOCKETS_AND_SIGNALS = 0b11


def deny_everything() -> int:
    """Return the descriptor of a ruleset that denies all that this kernel can deny.

    That is every file and folder, TCP (since version 4), and signals and
    abstract sockets to processes outside (since version 6).
    OSError where the kernel has no Landlock.
    """
    version = linux.landlock_version()
    if not version:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock")
    return linux.landlock_ruleset(handled(version))


def handled(version: int) -> bytes:
    """Return the attributes of that ruleset as a version of the kernel's interface has them."""
    words = [(1 << _FILE_RIGHTS[min(version, max(_FILE_RIGHTS))]) - 1]
    if version >= _TCP_SINCE:
        words.append(_BIND_AND_CONNECT)
    if version >= _SCOPES_SINCE:
        words.append(_SOCKETS_AND_SIGNALS)
    return struct.pack(f"={len(words)}Q", *words)
