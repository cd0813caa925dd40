"""The download job: the supervisor and its worker; runs on the node with the Python that has huggingface_hub.

Called as `download.py ASK.json` inside a detached unit. The supervisor (stdlib only) adopts what is there already,
sweeps stale `.incomplete` files, and starts a worker process that downloads through huggingface_hub. It measures bytes
on disk, which no library version can misreport, and ends a worker that makes none: hf-xet is known to hang without an
error (huggingface_hub#4508, #4520). The second time it goes on without Xet. Progress goes to stdout as JSON lines.

ASK: {"folder", "repo", "revision", "endpoint", "files": [{"path", "size", "sha256"}], "replace": [path], "workers",
"stall_seconds", "token_paths": [path], "adopt": [folder of an earlier download], "job": folder of the job}.
"""

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Set, Tuple

Ask = Dict[str, Any]
TICK = 1.0  # seconds between two looks at the disk: growth of files has no event that every file system gives
REPORT = 2.0  # seconds between two progress lines
ATTEMPTS = 5  # attempts in a row without one new byte, then the job gives up
ALIVE = 1 << 20  # bytes that a worker must read or write to count as alive while the disk does not grow (hashing)
GROWTH = 64 << 10  # bytes of growth that count as movement: a dead connection may still give one now and then
CHUNK = 1 << 20  # bytes that the hub's client gathers before it writes; its own 10 MiB hide a slow link's progress
FATAL = ("gated_repo", "auth_invalid", "forbidden", "not_found", "disk_full", "permission", "no_hub", "needs_xet")


def say(**fields: Any) -> None:
    """One JSON line for whoever follows the job."""
    print(json.dumps(fields), flush=True)


def classify(status: Optional[int], text: str, number: Optional[int] = None) -> str:
    """What kind of failure this is; also used on the text that `hf download` prints."""
    low = text.lower().replace("localentrynotfound", "")  # it only says that the file is not here either
    if number in (errno.ENOSPC, errno.EDQUOT) or "no space left on device" in low or "disk quota exceeded" in low:
        return "disk_full"
    if "gatedrepo" in low or "cannot access gated repo" in low or ("access to model" in low and "restricted" in low):
        return "gated_repo"
    if "consistency check failed" in low or "incompleteread" in low or "incomplete read" in low:
        return "truncated_download"
    if "too large to be downloaded using the regular download method" in low:
        return "needs_xet"
    if status is None:
        match = re.search(r"\b(401|403|404|416|429|5\d\d) (?:client|server) error", low)
        status = int(match.group(1)) if match else None
    if status in (401, 403):  # the hub says `not found` with them too, so that nobody learns what exists
        return "auth_invalid" if status == 401 else "forbidden"
    if "repositorynotfound" in low or "repo not found" in low or "revisionnotfound" in low or "entrynotfound" in low:
        return "not_found"
    if status is not None:
        named = {404: "not_found", 429: "rate_limited"}
        return named.get(status, "server_error" if status >= 500 else "refused")
    if number in (errno.EACCES, errno.EPERM, errno.EROFS) or "permission denied" in low or "read-only file" in low:
        return "permission"
    if "no module named 'huggingface_hub'" in low:
        return "no_hub"
    words = (
        "timed out",
        "timeout",
        "connect",
        "unreachable",
        "name or service not known",
        "name resolution",
        "reset by",
    )
    return "network" if any(word in low for word in words) else "unknown"


# ------------------------------------------------------------------------------------------------------- what is there


def wrong_files(ask: Ask) -> List[Dict[str, Any]]:
    """The files that are not there at their full size."""
    return [row for row in ask["files"] if size_of(os.path.join(ask["folder"], row["path"])) != row["size"]]


def size_of(path: str) -> Optional[int]:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def in_flight(folder: str) -> int:
    """Bytes in unfinished downloads; blocks where they are fewer, since a file may be laid out before it is filled."""
    total = 0
    for path in incomplete_files(folder):
        try:
            info = os.stat(path)
        except OSError:
            continue
        total += min(info.st_size, info.st_blocks * 512)
    return total


def incomplete_files(folder: str) -> List[str]:
    found = []
    for base, _, names in os.walk(os.path.join(folder, ".cache", "huggingface")):
        found += [os.path.join(base, name) for name in names if name.endswith(".incomplete")]
    return found


def measure(ask: Ask) -> Tuple[int, int]:
    """Bytes on disk of what is wanted, and how many files are whole."""
    done = whole = 0
    for row in ask["files"]:
        size = size_of(os.path.join(ask["folder"], row["path"]))
        if size == row["size"]:
            whole += 1
            done += row["size"]
    total = sum(row["size"] for row in ask["files"])
    return min(total, done + in_flight(ask["folder"])), whole


def sweep(folder: str) -> int:
    """Remove unfinished files that no process holds open; huggingface_hub never takes them up again. Bytes freed."""
    left = incomplete_files(folder)
    held = open_files() if left else set()
    freed = 0
    for path in left:
        if os.path.realpath(path) not in held:
            freed += size_of(path) or 0
            os.unlink(path)
    return freed


def open_files() -> Set[str]:
    """What the processes hold open that this login may look at."""
    held: Set[str] = set()
    for pid in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if pid.isdigit():
            try:
                for number in os.listdir("/proc/%s/fd" % pid):
                    held.add(os.readlink("/proc/%s/fd/%s" % (pid, number)))
            except OSError:
                continue
    return held


def drop(ask: Ask, path: str) -> None:
    """Remove a wrong file with the hub's note that it is right; a link is removed, not what it points to."""
    note = os.path.join(ask["folder"], ".cache", "huggingface", "download", path + ".metadata")
    for victim in (os.path.join(ask["folder"], path), note):
        if os.path.lexists(victim):
            os.unlink(victim)


def adopt(ask: Ask) -> int:
    """Take missing files from git-lfs' own store or from another download on this machine; how many."""
    folder, taken = ask["folder"], 0
    for row in wrong_files(ask):
        sources = [os.path.join(other, row["path"]) for other in ask.get("adopt", ())]
        if row.get("sha256"):
            sha = row["sha256"]
            sources.insert(0, os.path.join(folder, ".git", "lfs", "objects", sha[:2], sha[2:4], sha))
        for source in sources:
            if size_of(source) == row["size"]:
                drop(ask, row["path"])
                target = os.path.join(folder, row["path"])
                os.makedirs(os.path.dirname(target), exist_ok=True)
                take(os.path.realpath(source), target)
                taken += 1
                break
    return taken


def take(source: str, target: str) -> None:
    """A hard link where the file system allows, else a copy that appears whole or not at all."""
    try:
        os.link(source, target)
    except OSError:
        beside = target + ".relaunch-copy"
        shutil.copyfile(source, beside)
        os.replace(beside, target)


# ----------------------------------------------------------------------------------------------------------- supervisor


class Failed(Exception):
    """The end of the job, with its kind and the hub's own words."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


def supervise(ask: Ask) -> None:
    """Bring every file about; raises `Failed`."""
    folder = ask["folder"]
    made = missing_folders(folder)
    os.makedirs(os.path.join(folder, ".cache"), exist_ok=True)
    with open(os.path.join(folder, ".cache", "relaunch.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Failed("busy", "another download of Relaunch is writing to %s" % folder) from None
        for path in ask.get("replace", ()):
            drop(ask, path)
        for row in ask["files"]:
            if size_of(os.path.join(folder, row["path"])) not in (None, row["size"]):
                drop(ask, row["path"])  # the hub trusts its own note and would keep a file of the wrong size
        say(event="begin", swept=sweep(folder), adopted=adopt(ask), files=len(ask["files"]))
        try:
            attempts(ask)
        finally:
            shutil.rmtree(os.path.join(folder, ".cache", "relaunch-hub"), ignore_errors=True)
            own(folder, made)


def attempts(ask: Ask) -> None:
    """Workers, one after the other, until nothing is missing."""
    barren = stalls = 0
    best = -1
    while True:
        missing = wrong_files(ask)
        done, _ = measure(ask)
        if not missing:
            report(ask, done, 0.0)
            return
        whole = sum(row["size"] for row in ask["files"]) - sum(row["size"] for row in missing)
        barren = 0 if whole > best else barren + 1
        best = max(best, whole)
        outcome = run_worker(ask, missing, no_xet=stalls >= 2)
        if outcome["kind"] in FATAL:
            raise Failed(outcome["kind"], outcome["text"])
        stalls += outcome["kind"] == "stalled"
        if outcome["kind"] != "done":
            say(event="trouble", kind=outcome["kind"], text=outcome["text"], no_xet=stalls >= 2)
            if barren + 1 >= ATTEMPTS:
                raise Failed(outcome["kind"], outcome["text"])
            # the far end needs time, not a signal that we could wait for
            time.sleep(float(outcome.get("wait") or min(30.0, 0.5 * 2**barren)))
        elif barren + 1 >= ATTEMPTS:
            raise Failed("incomplete", "the hub says all is there, and %d files are not" % len(missing))


def run_worker(ask: Ask, missing: List[Dict[str, Any]], no_xet: bool) -> Dict[str, Any]:
    """One worker process from start to end; {"kind", "text", "wait"}."""
    job = ask["job"]
    todo = os.path.join(job, "todo.json")
    with open(todo, "w") as file:
        json.dump(dict(ask, files=[row["path"] for row in missing]), file)
    log = open(os.path.join(job, "hub.log"), "wb")
    answer = open(os.path.join(job, "worker.json"), "wb")
    with log, answer:
        worker = subprocess.Popen(
            [sys.executable, "-I", os.path.abspath(__file__), todo, "worker"],
            stdin=subprocess.PIPE,  # closed when this process ends, however it ends, and the worker ends with it
            stdout=answer,
            stderr=log,
            env=worker_environment(ask, no_xet),
            start_new_session=True,
        )
        stalled = watch(ask, worker)
    if stalled:
        text = "no new byte for %g seconds" % float(ask.get("stall_seconds", 120))
        text += " without Xet" if no_xet else ""
        status, word = last_word(os.path.join(job, "hub.log"))
        text += "; " + word if word else ""
        if status:  # it stands still because the hub says so, and the client is patient
            return {"kind": classify(status, ""), "text": text}
        return {"kind": "stalled", "text": text, "wait": 0.01}
    try:
        with open(os.path.join(job, "worker.json")) as file:
            result: Dict[str, Any] = json.loads(file.read().strip().splitlines()[-1])
            return result
    except (IndexError, ValueError):
        with open(os.path.join(job, "hub.log"), errors="replace") as file:
            lines = [line for line in file.read().splitlines() if line.strip()]
        text = lines[-1] if lines else "the worker ended with code %s and said nothing" % worker.returncode
        return {"kind": classify(None, text), "text": text}


def last_word(log: str) -> Tuple[Optional[int], str]:
    """What the hub's client complained of last, and the HTTP status in it; addresses without their signed queries."""
    try:
        with open(log, errors="replace") as file:
            lines = [line.strip() for line in file.read()[-8192:].splitlines()]
    except OSError:
        return None, ""
    kept = [line for line in lines if line and not line.startswith(("Retrying in", "Trying to resume"))]
    word = re.sub(r"\?\S+", "?...", kept[-1])[:300] if kept else ""
    match = re.search(r"HTTP Error (\d{3}) thrown while requesting", word)
    return (int(match.group(1)) if match else None), word


def worker_environment(ask: Ask, no_xet: bool) -> Dict[str, str]:
    """What the hub's client is told by environment; its caches go to the model's disk and are removed at the end."""
    own_cache = os.path.join(ask["folder"], ".cache", "relaunch-hub")
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    env.update(
        HF_ENDPOINT=ask["endpoint"],
        HF_HOME=own_cache,
        HF_XET_CACHE=os.path.join(own_cache, "xet"),
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        HF_HUB_DISABLE_TELEMETRY="1",
        HF_HUB_DISABLE_UPDATE_CHECK="1",
    )
    token = next((path for path in ask.get("token_paths", ()) if os.path.exists(path)), None)
    if token:
        env["HF_TOKEN_PATH"] = token
    if no_xet:
        env["HF_HUB_DISABLE_XET"] = "1"
    return env


def watch(ask: Ask, worker: Any) -> bool:
    """Report growth until the worker ends; True when it was ended for making none."""
    limit = float(ask.get("stall_seconds", 120))
    total = sum(row["size"] for row in ask["files"])
    done, whole = measure(ask)
    seen, count, busy = done, whole, activity(worker.pid)
    alive = reported = time.monotonic()
    marks = [(alive, done)]
    while True:
        try:
            worker.wait(TICK)
            return False
        except subprocess.TimeoutExpired:
            pass
        now = time.monotonic()
        done, whole = measure(ask)
        moved = activity(worker.pid)
        if done - seen >= min(GROWTH, max(1, total - seen)) or whole > count or moved - busy >= ALIVE:
            seen, count, busy, alive = done, whole, moved, now
        marks = [mark for mark in marks if now - mark[0] <= 15] + [(now, done)]
        if now - reported >= REPORT:
            reported = now
            span = now - marks[0][0]
            report(ask, done, max(0.0, (done - marks[0][1]) / span) if span else 0.0)
        if now - alive > limit and not told_to_wait(ask):
            os.killpg(worker.pid, signal.SIGKILL)  # our own child, in a session of its own
            worker.wait()
            return True


def told_to_wait(ask: Ask) -> bool:
    """Whether the hub's client says that it waits for a rate limit (429) to pass, and the time is not over."""
    path = os.path.join(ask["job"], "hub.log")
    try:
        with open(path, errors="replace") as file:
            waits = re.findall(r"Rate limited\. Waiting ([\d.]+)s", file.read()[-4096:])
        return bool(waits) and time.time() < os.stat(path).st_mtime + float(waits[-1]) + 5
    except (OSError, ValueError):
        return False


def activity(pid: int) -> int:
    """Bytes that the process has read and written by any means; 0 where the kernel does not tell."""
    try:
        with open("/proc/%d/io" % pid) as file:
            return sum(int(line.split()[1]) for line in file if line.startswith(("rchar", "wchar")))
    except (OSError, ValueError, IndexError):
        return 0


def report(ask: Ask, done: int, rate: float) -> None:
    """A progress line, and the same in a file that appears whole."""
    total = sum(row["size"] for row in ask["files"])
    whole = measure(ask)[1]
    fields = {"event": "progress", "done": done, "total": total, "rate": rate, "files_done": whole}
    fields["files"] = len(ask["files"])
    beside = os.path.join(ask["job"], ".progress.json")
    with open(beside, "w") as file:
        json.dump(fields, file)
    os.replace(beside, os.path.join(ask["job"], "progress.json"))
    say(**fields)


def missing_folders(folder: str) -> List[str]:
    """The folders on the way to `folder` that do not exist yet, outermost first."""
    missing: List[str] = []
    while not os.path.lexists(folder):
        missing.insert(0, folder)
        folder = os.path.dirname(folder)
    return missing


def own(folder: str, made: List[str]) -> None:
    """Give what root made to whoever owns the place it was made in, so that it is not a stranger in a home folder."""
    if os.geteuid() != 0:
        return
    info = os.stat(os.path.dirname(made[0]) if made else folder)
    if info.st_uid == 0:
        return
    for base, folders, names in os.walk(folder):
        for name in folders + names:
            os.lchown(os.path.join(base, name), info.st_uid, info.st_gid)
    for path in made:
        os.lchown(path, info.st_uid, info.st_gid)


# --------------------------------------------------------------------------------------------------------------- worker


def work(ask: Ask) -> Dict[str, Any]:
    """Download `ask["files"]` (paths) through huggingface_hub, several at a time; {"kind", "text"}."""
    try:
        import inspect
        from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

        from huggingface_hub import constants, hf_hub_download
    except ImportError as error:
        return {"kind": "no_hub", "text": str(error)}
    threading.Thread(target=end_with_supervisor, daemon=True).start()
    if hasattr(constants, "DOWNLOAD_CHUNK_SIZE"):
        constants.DOWNLOAD_CHUNK_SIZE = CHUNK
    options: Dict[str, Any] = {"repo_id": ask["repo"], "revision": ask["revision"], "local_dir": ask["folder"]}
    if "local_dir_use_symlinks" in inspect.signature(hf_hub_download).parameters:  # before 1.0
        options["local_dir_use_symlinks"] = False
    pool = ThreadPoolExecutor(max_workers=int(ask.get("workers", 8)))
    fetch: Any = hf_hub_download
    pending = [pool.submit(fetch, filename=path, **options) for path in ask["files"]]
    done, _ = wait(pending, return_when=FIRST_EXCEPTION)
    for future in done:
        failed = future.exception()
        if failed is not None:
            return explain(failed)
    return {"kind": "done", "text": ""}


def end_with_supervisor() -> None:
    """Wait for the end of stdin, which is the end of the supervisor."""
    sys.stdin.buffer.read()
    os._exit(1)


def explain(error: Optional[BaseException]) -> Dict[str, Any]:
    """The kind of the error in the words of the one that tells most: the hub wraps HTTP errors in vaguer ones."""
    kind, text, wait = "unknown", "", None
    while error is not None:
        response = getattr(error, "response", None)
        words = " ".join(("%s: %s" % (type(error).__name__, error)).split())
        found = classify(getattr(response, "status_code", None), words, getattr(error, "errno", None))
        if not text or (kind in ("unknown", "network") and found != "unknown"):
            kind, text = found, words[:500]
        wait = wait or asked_to_wait(getattr(response, "headers", None) or {})
        error = error.__cause__ or error.__context__
    return {"kind": kind, "text": text, "wait": wait}


def asked_to_wait(headers: Any) -> Optional[float]:
    """Seconds that the hub asks for in Retry-After or RateLimit, ten minutes at most."""
    match = re.search(r"\bt=(\d+)", headers.get("RateLimit") or headers.get("ratelimit") or "")
    text = headers.get("Retry-After") or headers.get("retry-after") or (match.group(1) if match else "")
    return min(float(text), 600.0) if re.match(r"\d+(\.\d+)?$", text) else None


def main(argv: List[str]) -> int:
    with open(argv[1]) as file:
        ask = json.load(file)
    if argv[2:] == ["worker"]:
        print(json.dumps(work(ask)), flush=True)
        os._exit(0)  # threads that hang in a library must not keep the worker
    try:
        supervise(ask)
    except Failed as error:
        say(event="end", ok=False, kind=error.kind, text=error.text)
        return 6
    except OSError as error:
        say(event="end", ok=False, kind=classify(None, str(error), error.errno), text=str(error))
        return 6
    say(event="end", ok=True, kind="done", text="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
