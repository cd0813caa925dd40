"""The manifest of a commit, what of it lies in a folder, and failures told apart, on recorded downloads."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import yaml

from console.checkpoint import hub
from console.checkpoint.hub import HubFile, Manifest
from console.checkpoint.node_download import asked_to_wait, classify, explain
from console.checkpoint.node_tree import limit_seconds
from console.node.facts import FileEntry, FolderState

CASES = Path("/work/shared/cases/hf")
MANIFEST = Manifest(
    "a/b", "1" * 40,
    (HubFile("config.json", 100, None, "b" * 40), HubFile("m-1.safetensors", 1000, "c" * 64, None), HubFile("m-2.safetensors", 1000, "d" * 64, None)),
)  # fmt: skip


def folder(**sizes: int) -> FolderState:
    entries = tuple(FileEntry(name.replace("__", "."), size, size, 1, 1, None) for name, size in sizes.items())
    return FolderState("/m", True, entries)


def test_a_manifest_survives_being_remembered() -> None:
    import json

    assert hub.decode_manifest(json.loads(hub.encode_manifest(MANIFEST))) == MANIFEST
    assert (MANIFEST.total, MANIFEST.weights) == (2100, 2000)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "~/x", "", "a\\b", "a\0b"])
def test_a_path_that_leaves_the_folder_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="leaves the model folder"):
        hub.decode_manifest({"repo": "a/b", "revision": "1", "files": [{"path": path, "size": 1}]})


def test_what_of_a_manifest_lies_in_a_folder() -> None:
    found = hub.presence(MANIFEST, folder(config__json=100, **{"m-1__safetensors": 400, "x__incomplete": 70}))
    assert [file.path for file in found.here] == ["config.json"]
    assert [file.path for file in found.missing] == ["m-2.safetensors"]
    assert [(file.path, have) for file, have in found.wrong] == [("m-1.safetensors", 400)]
    assert (found.done, found.needed, found.unfinished) == (100, 1600, 70)
    assert hub.sentence(MANIFEST, found) == "0/2 shards, 100 B of 2.1 kB"
    assert hub.presence(MANIFEST, None).needed == 2100


def test_a_file_edited_in_place_counts_as_here() -> None:
    sizes = {
        "config__json": 80,
        "config__json__before-relaunch": 100,
        "m-1__safetensors": 1000,
        "m-2__safetensors": 1000,
    }
    found = hub.presence(MANIFEST, folder(**sizes))
    assert (found.todo, found.patched) == ((), ("config.json",))
    assert hub.sentence(MANIFEST, found) == "2/2 shards, 2.1 kB; config.json edited in place, original kept"


@pytest.mark.parametrize(
    ("status", "text", "number", "kind"),
    [
        (401, "HTTPStatusError: 401 Client Error", None, "auth_invalid"),
        (None, "GatedRepoError: 403 Client Error. Cannot access gated repo", None, "gated_repo"),
        (403, "Forbidden", None, "forbidden"),
        (404, "RevisionNotFound Invalid rev id", None, "not_found"),
        (429, "Too Many Requests", None, "rate_limited"),
        (503, "", None, "server_error"),
        (None, "HfHubHTTPError: 502 Server Error: Bad Gateway", None, "server_error"),
        (None, "OSError: [Errno 28] No space left on device", None, "disk_full"),
        (None, "", errno.EDQUOT, "disk_full"),
        (None, "", errno.EACCES, "permission"),
        (None, "ReadTimeout: timed out", None, "network"),
        (None, "ConnectError: [Errno -3] Temporary failure in name resolution", None, "network"),
        (None, "ModuleNotFoundError: No module named 'huggingface_hub'", None, "no_hub"),
        (None, "The file is too large to be downloaded using the regular download method.", None, "needs_xet"),
        (None, "KeyError: 'x'", None, "unknown"),
    ],
)
def test_failures_are_told_apart(status: int | None, text: str, number: int | None, kind: str) -> None:
    assert classify(status, text, number) == kind


def test_the_error_that_tells_most_is_told() -> None:
    class Response:
        status_code = 429
        headers = {"RateLimit": '"api";r=0;t=42'}  # noqa: RUF012

    class TooMany(Exception):
        response = Response()

    try:
        try:
            raise TooMany("slow down")
        except TooMany as error:
            raise FileNotFoundError("LocalEntryNotFoundError: check your connection") from error
    except FileNotFoundError as error:
        found = explain(error)
    assert (found["kind"], found["text"], found["wait"]) == ("rate_limited", "TooMany: slow down", 42.0)
    assert limit_seconds('"api";r=0;t=7') == "7"
    assert asked_to_wait({"Retry-After": "99999"}) == 600.0
    assert asked_to_wait({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}) is None


def test_every_kind_has_a_remedy() -> None:
    assert all(meaning and remedy for meaning, remedy in hub.REMEDIES.values())


@pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not here")
@pytest.mark.parametrize("case", sorted(CASES.glob("*/")) if CASES.is_dir() else [], ids=lambda case: case.name)
def test_recorded_downloads(case: Path) -> None:
    expect = yaml.safe_load((case / "expect.yaml").read_text())["expect"]
    kind = classify(None, (case / "output.txt").read_text())
    assert kind == expect.get("category", "unknown")
