"""Check the files of a model folder: sizes, safetensors headers, index, hashes; runs on the node, Python 3.6, stdlib.

Called as `shards.py ASK.json` inside a detached job, or with the global ASK. What was found good is recorded with size,
mtime and inode, a few seconds apart while it works, so that an interrupted check goes on and an unchanged file is not
read twice. `deep` reads everything again.

ASK: {"folder", "record", "files": [{"path", "size", "sha256", "blob"}], "replicated": [regex], "workers", "deep"}. The
record is {"files": {path: {"size", "mtime_ns", "inode", "hash", "problem"}}, "surplus": [path], "index": [text],
"weights": {"total", "replicated"}, "checked"}.
"""

import hashlib
import json
import os
import re
import struct
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Set, Tuple

ASK: Dict[str, Any] = globals().get("ASK", {})

BLOCK = 4 << 20
INDEX = "model.safetensors.index.json"
BACKUP = ".before-relaunch"
SAVE = 2.0  # seconds between two writes of the record
LONGEST_HEADER = 100 << 20


class Wrong(Exception):
    """What is wrong with a file: a kind, and what was measured."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


# ------------------------------------------------------------------------------------------------------------ one file


def stamp(path: str) -> Dict[str, Any]:
    """Size, mtime and inode: the identity of a file's content as far as stat can tell."""
    info = os.stat(path)
    return {"size": info.st_size, "mtime_ns": info.st_mtime_ns, "inode": info.st_ino}


def check_size(path: str, size: Optional[int]) -> None:
    """Raises for a file that is missing, an LFS pointer, a page, too short or too long."""
    if not os.path.exists(path):
        raise Wrong("missing", "points to nothing" if os.path.islink(path) else "is not there")
    have = os.stat(path).st_size
    if size is None or have == size:
        return
    with open(path, "rb") as file:
        head = file.read(256)
    if head.startswith(b"version https://git-lfs"):
        raise Wrong("lfs-pointer", "is a git-lfs pointer of %d bytes, not the file" % have)
    if head.lstrip()[:1] == b"<":
        raise Wrong("page", "is an HTML or XML page of %d bytes, not the file" % have)
    if have < size:
        raise Wrong("truncated", "is %d bytes short (%d of %d)" % (size - have, have, size))
    raise Wrong("too-long", "is %d bytes too long (%d instead of %d)" % (have - size, have, size))


SEEN: Dict[Tuple[str, int, int], Dict[str, int]] = {}


def tensors(path: str) -> Dict[str, int]:
    """Bytes of each tensor in a file, read once per pass."""
    info = os.stat(path)
    key = (path, info.st_size, info.st_mtime_ns)
    if key not in SEEN:
        header = read_header(path)
        SEEN[key] = {
            name: what["data_offsets"][1] - what["data_offsets"][0]
            for name, what in header.items()
            if name != "__metadata__"
        }
    return SEEN[key]


def read_header(path: str) -> Dict[str, Any]:
    """The header of a safetensors file, with every rule of the format checked that needs no data."""
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        raw = file.read(8)
        if len(raw) < 8:
            raise Wrong("truncated", "has %d bytes, too few for a safetensors header" % size)
        (length,) = struct.unpack("<Q", raw)
        if length > min(size - 8, LONGEST_HEADER):
            kind = "lfs-pointer" if raw == b"version " else "page" if raw.lstrip()[:1] == b"<" else "header"
            raise Wrong(kind, "has no safetensors header: it would be %d bytes long" % length)
        try:
            header = json.loads(file.read(length).decode("utf-8"))
        except ValueError:
            raise Wrong("header", "has a safetensors header that is no JSON") from None
    if not isinstance(header, dict):
        raise Wrong("header", "has a safetensors header that is no object")
    end = data_end(header)
    if end != size - 8 - length:
        kind = "truncated" if end > size - 8 - length else "too-long"
        raise Wrong(kind, "holds %d bytes of tensors where its header says %d" % (size - 8 - length, end))
    return header


def data_end(header: Dict[str, Any]) -> int:
    """Where the tensors end, which must lie one behind the other without a gap."""
    at = 0
    spans = []
    for name, tensor in header.items():
        if name != "__metadata__":
            try:
                start, end = tensor["data_offsets"]
                spans.append((int(start), int(end)))
            except (KeyError, TypeError, ValueError):
                raise Wrong("header", "has a tensor without offsets: %s" % name) from None
    for start, end in sorted(spans):
        if start != at or end < start:
            raise Wrong("header", "has tensors that overlap or leave a gap at byte %d" % at)
        at = end
    return at


def holes(path: str) -> int:
    """Bytes that were never written, as far as the file system tells."""
    size = os.stat(path).st_size
    lost = at = 0
    try:
        with open(path, "rb") as file:
            while at < size:
                hole = os.lseek(file.fileno(), at, os.SEEK_HOLE)
                if hole >= size:
                    break
                try:
                    at = os.lseek(file.fileno(), hole, os.SEEK_DATA)
                except OSError:  # no data behind the hole
                    at = size
                lost += at - hole
    except (OSError, AttributeError):
        return 0
    return lost


def hash_file(path: str, git: bool, progress: Any) -> str:
    """sha256 of the file, or git's sha1 of a blob."""
    before = stamp(path)
    if git:
        digest = hashlib.sha1()
        digest.update(b"blob %d\0" % before["size"])
    else:
        digest = hashlib.sha256()
    buffer = memoryview(bytearray(BLOCK))
    with open(path, "rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while True:
            count = file.readinto(buffer)
            if not count:
                break
            digest.update(buffer[:count])
            progress(count)
    if stamp(path) != before:
        raise Wrong("changing", "changed while it was read")
    return digest.hexdigest()


def check_file(folder: str, row: Dict[str, Any], progress: Any) -> str:
    """The hash of a good file; raises `Wrong`. A file edited in place is good when its kept original is."""
    path = os.path.join(folder, row["path"])
    if os.path.exists(path + BACKUP) and (size_of(path + BACKUP) == row["size"]):
        path += BACKUP
    check_size(path, row["size"])
    if path.endswith(".safetensors"):
        tensors(path)
    want = row.get("sha256") or row.get("blob")
    if not want:
        return ""
    have = hash_file(path, not row.get("sha256"), progress)
    if have != want:
        lost = holes(path)
        if lost:
            raise Wrong("hole", "has holes: %d bytes were never written" % lost)
        raise Wrong("hash", "has the right size and the wrong content (hash %s…, want %s…)" % (have[:12], want[:12]))
    return have


def size_of(path: str) -> int:
    return os.stat(path).st_size


# -------------------------------------------------------------------------------------------------------------- index


def check_index(folder: str, files: List[Dict[str, Any]]) -> Tuple[List[str], List[str]]:
    """(problems between index, files and headers, safetensors files that nothing refers to)."""
    known = {row["path"] for row in files}
    there = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
    path = os.path.join(folder, INDEX)
    if not os.path.exists(path):
        return [], [name for name in there if name not in known and known]
    try:
        with open(path, encoding="utf-8") as file:
            weight_map = json.load(file)["weight_map"]
            named = set(weight_map.values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return ["%s is no safetensors index" % INDEX], []
    problems = ["%s is named by the index and is not there" % name for name in sorted(named - set(there))]
    by_file: Dict[str, Set[str]] = {}
    for tensor, name in weight_map.items():
        by_file.setdefault(name, set()).add(tensor)
    for name in sorted(named & set(there)):
        try:
            held = set(tensors(os.path.join(folder, name)))
        except (Wrong, OSError):
            continue  # said of the file itself
        lost = sorted(by_file[name] - held)[:3]
        problems += ["%s does not hold %s, which the index says it does" % (name, tensor) for tensor in lost]
    return problems, [name for name in there if name not in named and name not in known]


def weigh(folder: str, patterns: List[str]) -> Dict[str, int]:
    """Bytes of all tensors, and of those that every tensor-parallel rank keeps whole."""
    whole = re.compile("|".join(patterns)) if patterns else None
    total = replicated = 0
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        try:
            held = tensors(os.path.join(folder, name))
        except (Wrong, OSError):
            continue
        for tensor, count in held.items():
            total += count
            replicated += count if whole is not None and whole.search(tensor) else 0
    return {"total": total, "replicated": replicated}


# --------------------------------------------------------------------------------------------------------------- check


class Check:
    """One pass over a folder: threads take files from a list, the main thread reports and saves."""

    def __init__(self, ask: Dict[str, Any], say: Any) -> None:
        self.ask = ask
        self.say = say
        self.lock = threading.Lock()
        self.read = 0
        self.record: Dict[str, Any] = {"files": {}, "surplus": [], "index": [], "weights": {}, "checked": 0}
        old = {} if ask.get("deep") else load(ask["record"]).get("files", {})
        self.todo: List[Dict[str, Any]] = []
        for row in ask["files"]:
            entry = old.get(row["path"])
            if entry and not entry.get("problem") and self.same(row, entry):
                self.record["files"][row["path"]] = entry
            else:
                self.todo.append(row)
        self.total = sum(row["size"] for row in self.todo)

    def same(self, row: Dict[str, Any], entry: Dict[str, Any]) -> bool:
        """Whether the file is the very one that was found good, and what is wanted is what it was compared with."""
        want = row.get("sha256") or row.get("blob") or ""
        try:
            now = stamp(os.path.join(self.ask["folder"], row["path"]))
        except OSError:
            return False
        return all(now[key] == entry.get(key) for key in now) and entry.get("hash", "") == want

    def progress(self, count: int) -> None:
        with self.lock:
            self.read += count

    def work(self, queue: List[Dict[str, Any]]) -> None:
        while True:
            with self.lock:
                if not queue:
                    return
                row = queue.pop(0)
            entry: Dict[str, Any] = {"hash": "", "problem": None}
            path = os.path.join(self.ask["folder"], row["path"])
            try:
                entry["hash"] = check_file(self.ask["folder"], row, self.progress)
            except Wrong as wrong:
                entry["problem"] = {"kind": wrong.kind, "text": wrong.text}
            except OSError as error:
                entry["problem"] = {"kind": "unreadable", "text": "cannot be read: %s" % error.strerror}
            try:
                entry.update(stamp(path))
            except OSError:
                pass
            with self.lock:
                self.record["files"][row["path"]] = entry

    def run(self) -> Dict[str, Any]:
        """The whole pass; the record."""
        queue = sorted(self.todo, key=lambda row: -row["size"])
        threads = [
            threading.Thread(target=self.work, args=(queue,), daemon=True)
            for _ in range(max(1, min(int(self.ask.get("workers", 8)), len(queue) or 1)))
        ]
        for thread in threads:
            thread.start()
        begun = time.monotonic()
        for thread in threads:
            thread.join(SAVE)
            while thread.is_alive():
                self.tell(begun)
                self.save(final=False)
                thread.join(SAVE)
        folder = self.ask["folder"]
        if os.path.isdir(folder):
            self.record["index"], self.record["surplus"] = check_index(folder, self.ask["files"])
            self.record["weights"] = weigh(folder, self.ask.get("replicated", []))
        self.record["checked"] = time.time()
        self.save(final=True)
        self.tell(begun)
        return self.record

    def tell(self, begun: float) -> None:
        with self.lock:
            done, files = self.read, len(self.record["files"])
        span = time.monotonic() - begun
        fields = {"event": "progress", "done": done, "total": self.total, "rate": done / span if span else 0.0}
        self.say(files_done=files, files=len(self.ask["files"]), **fields)

    def save(self, final: bool) -> None:
        path = self.ask["record"]
        with self.lock:
            data = json.dumps(dict(self.record, complete=final))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        beside = "%s.%d" % (path, os.getpid())
        with open(beside, "w") as file:
            file.write(data)
        os.chmod(beside, 0o644)
        os.replace(beside, path)


def load(path: str) -> Dict[str, Any]:
    try:
        with open(path) as file:
            data = json.load(file)
        return data if isinstance(data, dict) else {}
    except (OSError, ValueError):
        return {}


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def main(ask: Dict[str, Any]) -> int:
    record = Check(ask, say).run()
    bad = sorted(path for path, entry in record["files"].items() if entry["problem"])
    say(event="end", ok=not bad and not record["index"], wrong=bad[:20], index=record["index"][:5])
    return 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        with open(sys.argv[1]) as ask_file:
            ASK = json.load(ask_file)
    sys.exit(main(ASK))
