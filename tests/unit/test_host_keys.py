"""Host keys: known, unknown, changed, revoked; looked up by name; kept in a file of our own."""

from __future__ import annotations

from pathlib import Path

import asyncssh
import pytest

from console.errors import HostKeyRejected
from console.node.hostkeys import HostKeyCheck, HostKeyState, classify, own_file, read_trusted, remember, settle

KEY = asyncssh.generate_private_key("ssh-ed25519").convert_to_public()
OTHER = asyncssh.generate_private_key("ssh-ed25519").convert_to_public()
ECDSA = asyncssh.generate_private_key("ecdsa-sha2-nistp256").convert_to_public()


def public(key: asyncssh.SSHKey) -> str:
    return key.export_public_key().decode().strip()


def known(*lines: str) -> asyncssh.SSHKnownHosts:
    return asyncssh.import_known_hosts("\n".join(lines))


@pytest.mark.parametrize(
    ("lines", "state"),
    [
        ([], HostKeyState.UNKNOWN),
        ([f"gpu1 {public(KEY)}"], HostKeyState.KNOWN),
        ([f"*.lab,gpu? {public(KEY)}"], HostKeyState.KNOWN),
        ([f"gpu1 {public(OTHER)}"], HostKeyState.CHANGED),
        ([f"gpu1 {public(ECDSA)}"], HostKeyState.CHANGED),
        ([f"gpu1 {public(OTHER)}", f"gpu1 {public(KEY)}"], HostKeyState.KNOWN),
        ([f"gpu2 {public(KEY)}"], HostKeyState.UNKNOWN),
        ([f"gpu1 {public(KEY)}", f"@revoked * {public(KEY)}"], HostKeyState.REVOKED),
        ([f"@revoked gpu1 {public(KEY)}"], HostKeyState.REVOKED),
        ([f"@cert-authority * {public(OTHER)}"], HostKeyState.UNKNOWN),
        ([f"[gpu1]:2222 {public(KEY)}"], HostKeyState.UNKNOWN),
    ],
)
def test_states(lines: list[str], state: HostKeyState) -> None:
    assert classify(known(*lines), "gpu1", 22, KEY) is state


def test_another_port_has_its_own_key() -> None:
    entries = known(f"[gpu1]:2222 {public(KEY)}", f"gpu1 {public(OTHER)}")
    assert classify(entries, "gpu1", 2222, KEY) is HostKeyState.KNOWN
    assert classify(entries, "gpu1", 22, KEY) is HostKeyState.CHANGED


def test_a_key_known_for_the_address_alone_is_no_known_key(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"10.0.0.1 {public(KEY)}\n")
    check = HostKeyCheck("gpu1", (str(file),))
    assert check.trusted_keys("gpu1", "10.0.0.1", None) == ([], [], [])


def test_lines_that_cannot_be_read_trust_nothing_and_hide_nothing(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_bytes(
        b"rubbish\n@odd a b c\n\xff\xfe x y\ngpu1 ssh-ed25519 notbase64\n" + f"gpu1 {public(KEY)}\n".encode()
    )
    assert classify(read_trusted([str(file), "/nowhere"]), "gpu1", 22, KEY) is HostKeyState.KNOWN


def test_the_known_type_is_asked_for_first(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"gpu1 {public(ECDSA)}\n")
    check = HostKeyCheck("gpu1", (str(file),))
    asked = check.algorithms("gpu1", 22)
    assert asked[0] == "ecdsa-sha2-nistp256"
    assert "ssh-ed25519" in asked
    assert not [name for name in asked if "cert" in name]


async def test_an_accepted_key_is_kept_and_found_again() -> None:
    class Yes:
        async def accept_host(self, question: object) -> bool:
            return True

        async def password(self, question: str) -> None:
            return None

    check = HostKeyCheck("gpu1", ())
    check.trusted_keys("gpu1.lab", "", 2222)
    assert check.offered(KEY) is False
    await settle(check, Yes())
    assert own_file().stat().st_mode & 0o777 == 0o600
    assert own_file().parent.stat().st_mode & 0o777 == 0o700
    again = HostKeyCheck("gpu1", ())
    assert again.trusted_keys("gpu1.lab", "", 2222)[0] == [KEY]
    assert again.trusted_keys("gpu1.lab", "", None)[0] == []


async def test_remedies_are_exact_commands(tmp_path: Path) -> None:
    file = tmp_path / "known hosts"
    remember(file, "[gpu1]:2222", OTHER)
    changed = HostKeyCheck("gpu1", (str(file), "/nowhere"))
    changed.trusted_keys("gpu1", "", 2222)
    changed.offered(KEY)
    with pytest.raises(HostKeyRejected) as caught:
        await settle(changed, None)
    assert caught.value.remedy.endswith(f"ssh-keygen -R '[gpu1]:2222' -f '{file}'")
    assert KEY.get_fingerprint() in caught.value.message
    assert int(caught.value.code) == 4
