"""asyncssh, loaded without the parts that no node session uses; import it from here.

Two parts of it cost a third of its load, which a run that finds all as wanted feels: X.509 certificates, which OpenSSH does
not have, and a search for the C libraries liboqs and nettle, which runs ldconfig and a compiler. Without them there are
no sntrup761 key exchange and no UMAC; every OpenSSH since 6.5 has curve25519 and AES-GCM or ChaCha20 beside those. A
process that has loaded asyncssh before keeps what it has.
"""

from __future__ import annotations

import ctypes.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_CERTIFICATES = "asyncssh.crypto.x509"


def _not_looked_for(name: str) -> str | None:
    return None


@contextmanager
def _frugally() -> Iterator[None]:
    look = ctypes.util.find_library
    ctypes.util.find_library = _not_looked_for
    sys.modules[_CERTIFICATES] = None  # type: ignore[assignment]  # how Python is told that an import shall fail
    try:
        yield
    finally:
        ctypes.util.find_library = look
        del sys.modules[_CERTIFICATES]


if "asyncssh" in sys.modules:
    import asyncssh
else:
    with _frugally():
        import asyncssh

from asyncssh.config import ConfigParseError, SSHClientConfig, SSHConfig  # noqa: E402 -- behind the load above
from asyncssh.public_key import get_default_certificate_algs, get_default_public_key_algs  # noqa: E402

__all__ = [
    "ConfigParseError",
    "SSHClientConfig",
    "SSHConfig",
    "asyncssh",
    "get_default_certificate_algs",
    "get_default_public_key_algs",
]
