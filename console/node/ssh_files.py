"""Files of the login user over SFTP: bounded reads and atomic writes. Never SCP, which the far side may steer.

A write makes a temporary file in the same folder, with its mode before its content, syncs it and renames it over the old
one (`posix-rename@openssh.com`; the plain rename of SFTP 3 fails when the target exists, measured in ENGINEERING 2b).
"""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from console.errors import CommandFailed, Unreachable, no_room
from console.node.base import NoSuchFile
from console.node.ssh_exec import GONE, Budget, NotOpened
from console.node.ssh_library import asyncssh

_CHUNK = 1 << 20
_SLOWEST = 32 * 1024
"""Bytes per second below which a transfer counts as stuck."""
_GOODBYE = 5.0
_PATIENCE = 60.0
"""Seconds on top of that."""


class Unsupported(Exception):
    """The server has no SFTP, or lacks what an atomic write needs."""


async def read_file(connection: asyncssh.SSHClientConnection, budget: Budget, path: str, limit: int) -> bytes:
    """The bytes of `path`. Raises what `Node.read` raises, and `Unsupported`."""
    async with _session(connection, budget, "read", path, limit) as sftp:
        try:
            kind = (await sftp.stat(path)).type
            if kind != asyncssh.FILEXFER_TYPE_REGULAR:  # opening a pipe would wait for its other end
                what = "it is a folder" if kind == asyncssh.FILEXFER_TYPE_DIRECTORY else "it is no regular file"
                raise CommandFailed(("read", path), 1, what)
            parts: list[bytes] = []
            room = limit + 1
            async with sftp.open(path, "rb") as source:
                # Until the end, whatever size was told: files of /proc tell 0.
                while room > 0 and (part := await _chunk(source, limit + 1 - room, room)):
                    parts.append(part)
                    room -= len(part)
        except (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath) as error:
            raise NoSuchFile(f"there is no file {path}") from error
        except asyncssh.SFTPError as error:
            raise _failed("read", path, error) from error
    if room <= 0:
        raise CommandFailed(("read", path), 1, f"it has more than {limit:,} bytes")
    return b"".join(parts)


async def _chunk(source: asyncssh.SFTPClientFile, offset: int, room: int) -> bytes:
    part: object = await source.read(min(room, _CHUNK), offset=offset)
    return part if isinstance(part, bytes) else b""


async def write_file(
    connection: asyncssh.SSHClientConnection, budget: Budget, path: str, data: bytes, mode: int
) -> None:
    """Replace `path` atomically. Raises what `Node.write` raises, and `Unsupported`. When the link goes away in between, a
    temporary file may stay behind; nothing can be removed over a link that is gone."""
    temporary = posixpath.join(posixpath.dirname(path), f".relaunch-{os.urandom(8).hex()}")
    async with _session(connection, budget, "write", path, len(data)) as sftp:
        try:
            await _put(sftp, temporary, path, data, mode)
        except (asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection):
            raise
        except asyncssh.SFTPOpUnsupported as error:
            await _remove(sftp, temporary)
            raise Unsupported(error.reason) from error
        except asyncssh.SFTPError as error:
            reason = await _why_not_written(sftp, path, error)
            await _remove(sftp, temporary)
            raise reason from error
        except BaseException:
            await _remove(sftp, temporary)
            raise


async def _put(sftp: asyncssh.SFTPClient, temporary: str, path: str, data: bytes, mode: int) -> None:
    flags = asyncssh.FXF_WRITE | asyncssh.FXF_CREAT | asyncssh.FXF_EXCL
    async with sftp.open(temporary, flags, asyncssh.SFTPAttrs(permissions=mode), encoding=None) as target:
        await target.setstat(asyncssh.SFTPAttrs(permissions=mode))  # whatever the umask took away
        await target.write(data)
        await target.fsync()
    await sftp.posix_rename(temporary, path)


async def _remove(sftp: asyncssh.SFTPClient, temporary: str) -> None:
    with suppress(asyncssh.Error, OSError):
        await sftp.remove(temporary)


async def _why_not_written(sftp: asyncssh.SFTPClient, path: str, error: asyncssh.SFTPError) -> Exception:
    """SFTP 3 says no more than "Failure" of a full disk and of a folder in the way, so look."""
    if isinstance(error, asyncssh.SFTPNoSuchFile | asyncssh.SFTPNoSuchPath):
        return CommandFailed(("write", path), 1, "the folder it should stand in does not exist")
    if isinstance(error, asyncssh.SFTPFailure):
        with suppress(asyncssh.Error, OSError):
            if await sftp.isdir(path):
                return CommandFailed(("write", path), 1, "a folder stands at that path")
            if (await sftp.statvfs(posixpath.dirname(path) or ".")).bavail == 0:
                return no_room(path)
    return _failed("write", path, error)


def _failed(verb: str, path: str, error: asyncssh.SFTPError) -> Exception:
    if isinstance(error, asyncssh.SFTPConnectionLost | asyncssh.SFTPNoConnection):
        return _lost(verb, path)
    words = "permission denied" if isinstance(error, asyncssh.SFTPPermissionDenied) else error.reason
    return CommandFailed((verb, path), 1, words)


def _lost(verb: str, path: str) -> Unreachable:
    state = "; whether the file was replaced is unknown" if verb == "write" else ""
    return Unreachable(f"the link was lost during {verb} of {path}{state}")


@asynccontextmanager
async def _session(
    connection: asyncssh.SSHClientConnection, budget: Budget, verb: str, path: str, size: int
) -> AsyncIterator[asyncssh.SFTPClient]:
    """An SFTP session with a place in the budget and a time limit that allows for a slow link."""
    try:
        async with asyncio.timeout(_PATIENCE + size / _SLOWEST), budget.place():
            try:
                sftp = await connection.start_sftp_client()
            except (asyncssh.ChannelOpenError, asyncssh.SFTPError) as error:
                if connection.is_closed() or error.reason == GONE:
                    raise NotOpened(error.reason, gone=True) from error
                raise Unsupported(error.reason) from error
            try:
                yield sftp
            finally:
                sftp.exit()
                with suppress(TimeoutError):  # a server that hangs, as on a dead network disk, is not waited for
                    async with asyncio.timeout(_GOODBYE):
                        await sftp.wait_closed()
    except TimeoutError:
        raise Unreachable(f"{verb} of {path} got no answer in time") from None
    except (asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection, asyncssh.DisconnectError, ConnectionError) as error:
        raise _lost(verb, path) from error
