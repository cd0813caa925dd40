"""Runs on the node: everything that `console.node.facts.Facts` holds, as one JSON object. Stdlib only, Python 3.6-safe.

Reads only. A probe that fails leaves its fact null and a sentence in `missing`. Forks systemctl at most twice, ss once,
and nvidia-smi only where NVML cannot be used. ASK: the fields of `Question`.
"""

import concurrent.futures
import functools
import glob
import json
import os
import pwd
import re
import resource
import shutil
import stat
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from console.node.agent.processes import ROOT, read, start_ticks, started, unit_of
from console.node.agent.telemetry_once import once

ASK: Dict[str, Any] = globals().get("ASK", {})
SEARCH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
TOOLS = (
    "systemctl", "systemd-run", "systemd-analyze", "journalctl", "nvidia-smi", "ss", "uv", "git", "sudo", "nvcc", "ninja",
)  # fmt: skip
PROPERTIES = (
    "Id,LoadState,ActiveState,SubState,Result,MainPID,InvocationID,ControlGroup,FragmentPath,NeedDaemonReload,"
    "UnitFileState,NRestarts,ExecMainCode,ExecMainStatus"
)
TEXT_LIMIT = 4 << 20
DEPTH, ENTRIES = 4, 20000
KERNEL = re.compile(
    r"NVRM: (?:Xid|GPU at|.*(?:fallen off|RmInitAdapter failed|GSP|version mismatch))|Out of memory: Killed process"
    r"|oom-kill:|AER: .*(?:Uncorrect|Fatal)|pcieport .*(?:Surprise|link down)|nvidia.*(?:probe failed|failed to load)",
    re.IGNORECASE,
)

missing: List[str] = []


def probe(what: str, look: Callable[[], Any], otherwise: Any = None) -> Any:
    """The answer of `look`; when it fails, `otherwise`, and the reason among what is missing."""
    try:
        return look()
    except Exception as failure:
        said = getattr(failure, "strerror", None) or str(failure) or type(failure).__name__
        missing.append("%s: %s" % (what, said))
        return otherwise


def output(argv: List[str], limit: float = 20.0) -> str:
    """Standard output of a command that must succeed within `limit` seconds."""
    program = shutil.which(argv[0], path=SEARCH)
    if program is None:
        raise OSError("there is no %s" % argv[0])
    done = subprocess.Popen(
        [program, *argv[1:]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        out, err = done.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        done.kill()
        raise OSError("%s gave no answer in %d seconds" % (argv[0], limit)) from None
    if done.returncode != 0:
        raise OSError((err.decode("utf-8", "replace").strip().splitlines() or ["%s failed" % argv[0]])[-1])
    return out.decode("utf-8", "replace")


# ------------------------------------------------------------------------------------------------- who and where


def login() -> Tuple[str, int, str]:
    """(name, uid, home) of the login, which under sudo is not who runs this."""
    uid = os.geteuid()
    if uid == 0 and os.environ.get("SUDO_UID", "").isdigit():
        uid = int(os.environ["SUDO_UID"])
    if ROOT:
        return pwd.getpwuid(uid).pw_name, uid, os.environ.get("HOME") or ROOT
    try:
        entry = pwd.getpwuid(uid)
        name, home = entry.pw_name, entry.pw_dir
    except KeyError:
        name, home = str(uid), os.environ.get("HOME", "/")
    own = os.environ.get("HOME") if uid == os.geteuid() else None
    return name, uid, own or home


NAME, UID, HOME = login()
STATE = ROOT + "/var/lib/relaunch"


def absolute(path: str) -> str:
    if path == "~" or path.startswith("~/"):
        return HOME.rstrip("/") + path[1:]
    if path.startswith("state:/"):
        return STATE + path[len("state:") :].rstrip("/")
    return path


def manager() -> Dict[str, str]:
    """systemd's own version and its search path for unit files."""
    lines = output(["systemctl", "show", "-p", "Version,UnitPath"]).splitlines()
    return dict(line.partition("=")[::2] for line in lines if "=" in line)


def unit_folder(search: str) -> str:
    """The administrator's folder in systemd's search path."""
    folders = search.split()
    own = [path for path in folders if path.endswith("/etc/systemd/system")]
    if own:
        return own[0]
    raise OSError("systemd names no folder for an administrator's units")


def cgroup_mount() -> str:
    """Where the tree that systemd keeps its units in is mounted: cgroup2, a hybrid's second tree, or version 1."""
    if ROOT:
        return ROOT + "/sys/fs/cgroup"
    found = []
    for line in read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        mount, kind = left.split()[4], right.split()[0]
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in right):
            found.append((kind != "cgroup2", mount))
    for _, mount in sorted(found):
        if glob.glob(mount + "/init.scope") or glob.glob(mount + "/system.slice"):
            return mount
    if found:
        return sorted(found)[0][1]
    raise OSError("no cgroup tree of systemd is mounted")


# ------------------------------------------------------------------------------------------------- machine


def memory() -> Dict[str, int]:
    rows = re.findall(r"^(\w+):\s+(\d+) kB", read("/proc/meminfo"), re.MULTILINE)
    return {name: int(size) * 1024 for name, size in rows}


def limits() -> Dict[str, str]:
    named = {"nofile": resource.RLIMIT_NOFILE, "memlock": resource.RLIMIT_MEMLOCK}
    soft = {name: resource.getrlimit(which)[0] for name, which in named.items()}
    return {name: "unlimited" if value == resource.RLIM_INFINITY else str(value) for name, value in soft.items()}


def kernel_log() -> List[str]:
    """Lines of this boot that tell of GPU faults, PCIe errors and the OOM killer, oldest first, 200 at most."""
    if ROOT:
        return [line for line in read(ROOT + "/dev/kmsg").splitlines() if KERNEL.search(line)][-200:]
    handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    lines: List[str] = []
    try:
        while True:
            try:
                record = os.read(handle, 8192).decode("utf-8", "replace")
            except BlockingIOError:
                return lines[-200:]
            except BrokenPipeError:
                continue  # the record was overwritten while we read; the next read goes on behind it
            head, _, said = record.partition(";")
            line = said.partition("\n")[0]
            if KERNEL.search(line):
                lines.append("[%.3f] %s" % (int(head.split(",")[2]) / 1e6, line))
    finally:
        os.close(handle)


def disk(path: str) -> Dict[str, Any]:
    """Room on the file system that holds `path`, or would hold it."""
    place = path
    while not os.path.exists(place) and place != "/":
        place = os.path.dirname(place) or "/"
    room = os.statvfs(place)
    mount = os.path.realpath(place)
    while mount != "/" and os.stat(os.path.dirname(mount)).st_dev == os.stat(mount).st_dev:
        mount = os.path.dirname(mount)
    return {
        "path": path, "mount": mount, "free": room.f_bavail * room.f_frsize, "total": room.f_blocks * room.f_frsize,
        "inodes_free": room.f_favail if room.f_files else None,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------- services


def units(names: List[str]) -> Dict[str, Any]:
    """The properties of all units by one systemctl, each with its unit file's text."""
    if not names:
        return {}
    blocks: List[Dict[str, str]] = [{}]
    for line in output(["systemctl", "show", "-p", PROPERTIES, *names]).splitlines():
        key, equals, value = line.partition("=")
        if not line.strip():
            blocks.append({})
        elif equals:
            blocks[-1][key] = value
    blocks = [block for block in blocks if block]
    if len(blocks) != len(names):
        raise OSError("systemctl answered for %d units where %d were asked" % (len(blocks), len(names)))
    for name, block in zip(names, blocks):  # noqa: B905 - strict= came with 3.10
        fragment = block.get("FragmentPath", "")
        if fragment:
            text = probe("text of %s" % name, functools.partial(small_text, fragment))
            if text is not None:
                block["text"] = text
            block["stale"] = "yes" if written_since_start(fragment, block.get("MainPID", "0")) else "no"
    return dict(zip(names, blocks))  # noqa: B905


def written_since_start(fragment: str, main_pid: str) -> bool:
    """The unit file was written after the unit's main process started, so that what runs may be of another text."""
    ticks = start_ticks(int(main_pid)) if main_pid.isdigit() and main_pid != "0" else None
    try:
        return ticks is not None and os.stat(fragment).st_mtime > started(ticks)
    except OSError:
        return False


def listener(port: int, address: str, pid: Optional[int]) -> Dict[str, Any]:
    command = ""
    if pid is not None:
        command = read("/proc/%d/cmdline" % pid).replace("\0", " ").strip() or read("/proc/%d/comm" % pid).strip()
    unit = None if pid is None else unit_of(pid)
    return {"port": port, "address": address, "pid": pid, "unit": unit, "command": command[:300]}


def ss_listeners() -> List[Dict[str, Any]]:
    found = []
    for line in output(["ss", "-H", "-ltnp"]).splitlines():
        columns = line.split()
        if len(columns) < 4 or columns[0] != "LISTEN":
            continue
        address, _, port = columns[3].rpartition(":")
        pids = re.findall(r"pid=(\d+)", line)
        if port.isdigit():
            found.append(listener(int(port), address.strip("[]"), int(pids[0]) if pids else None))
    return found


def proc_listeners() -> List[Dict[str, Any]]:
    """Without ss: the kernel's own tables, and the descriptors of the processes that may be seen."""
    sockets: Dict[str, Tuple[int, str]] = {}
    for name in ("tcp", "tcp6"):
        for line in read("/proc/net/" + name).splitlines()[1:]:
            columns = line.split()
            address, _, port = columns[1].rpartition(":")
            if columns[3] == "0A":
                quad = ".".join(str(int(address[at : at + 2], 16)) for at in (6, 4, 2, 0)) if name == "tcp" else address
                sockets["socket:[%s]" % columns[9]] = (int(port, 16), quad)
    owners: Dict[str, int] = {}
    for link in glob.iglob("/proc/[0-9]*/fd/*") if sockets else ():
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target in sockets:
            owners.setdefault(target, int(link.split("/")[2]))
    return [listener(port, address, owners.get(name)) for name, (port, address) in sockets.items()]


def listeners(ports: List[int], names: List[str]) -> List[Dict[str, Any]]:
    """Who listens on these ports, and on whatever port in these units."""
    if not ports and not names:
        return []
    everyone = ss_listeners() if shutil.which("ss", path=SEARCH) else proc_listeners()
    found = [one for one in everyone if one["port"] in ports or one["unit"] in names]
    if any(one["pid"] is None for one in found):
        missing.append("whose the listening ports are: this login may not see other logins' processes")
    return found


# ------------------------------------------------------------------------------------------------- files


def small_text(path: str) -> str:
    with open(path, "rb") as source:
        data = source.read(TEXT_LIMIT + 1)
    if len(data) > TEXT_LIMIT:
        raise OSError("%s is over %d MiB" % (path, TEXT_LIMIT >> 20))
    return data.decode("utf-8", "surrogateescape")


def texts(patterns: List[str]) -> Dict[str, str]:
    found: Dict[str, str] = {}
    for asked in patterns:
        pattern = absolute(asked)
        paths = sorted(glob.glob(pattern)) if "*" in os.path.basename(pattern) else [pattern]
        for path in paths:
            if os.path.isfile(path):
                text = probe(path, functools.partial(small_text, path))
                if text is not None:
                    found[path] = text
    return found


def package(venv: str, name: str) -> Optional[str]:
    """Version of an installed distribution by its metadata; asking vLLM itself would take it a quarter minute."""
    found = []
    for path in glob.glob(os.path.join(glob.escape(venv), "lib", "python3*", "site-packages", name + "-*.dist-info")):
        head = read(os.path.join(path, "METADATA")).partition("\n\n")[0]
        fields = dict(line.partition(": ")[::2] for line in reversed(head.splitlines()) if ": " in line)
        if re.sub(r"[-_.]+", "_", fields.get("Name", "")).lower() == name and fields.get("Version"):
            found.append(fields["Version"])
    if len(set(found)) > 1:
        missing.append("version of %s in %s: %s are all installed" % (name, venv, " and ".join(sorted(found))))
        return None
    return found[0] if found else None


def venv(path: str) -> Dict[str, Any]:
    config = read(os.path.join(path, "pyvenv.cfg"))
    version = re.search(r"^version(?:_info)?\s*=\s*([0-9][\w.]*)", config, re.MULTILINE)
    return {
        "path": path, "exists": bool(config) or os.path.exists(os.path.join(path, "bin", "python")),
        "python": version.group(1) if version else None,
        "vllm": package(path, "vllm"), "hub": package(path, "huggingface_hub"),
    }  # fmt: skip


def entries(top: str, inner: str = "", depth: int = 1) -> Iterator[List[Any]]:
    """[name, size, allocated, mtime_ns, inode, link] of each file, links not followed into folders."""
    with os.scandir(os.path.join(top, inner)) as found:
        listed = sorted(found, key=lambda entry: entry.name)
    for entry in listed:
        name = os.path.join(inner, entry.name)
        if entry.is_dir(follow_symlinks=False):
            if depth < DEPTH:
                for deeper in entries(top, name, depth + 1):
                    yield deeper
            continue
        link = os.readlink(entry.path) if entry.is_symlink() else None
        try:
            facts = entry.stat()
        except OSError:
            facts = entry.stat(follow_symlinks=False)  # a link to nothing: the link itself, of no size
            yield [name, 0, 0, facts.st_mtime_ns, facts.st_ino, link]
            continue
        if stat.S_ISREG(facts.st_mode):
            yield [name, facts.st_size, facts.st_blocks * 512, facts.st_mtime_ns, facts.st_ino, link]


def folder(path: str) -> Dict[str, Any]:
    files: List[List[Any]] = []
    exists = os.path.isdir(path)
    if exists:
        for entry in entries(path):
            if len(files) == ENTRIES:
                missing.append("files of %s beyond the first %d" % (path, ENTRIES))
                break
            files.append(entry)
    return {"path": path, "exists": exists, "files": files}


# ------------------------------------------------------------------------------------------------- all of it


def paths(systemd: Dict[str, str]) -> Dict[str, str]:
    return {
        "home": HOME.rstrip("/") or "/",
        "units": probe("folder for unit files", lambda: unit_folder(systemd["UnitPath"]), ROOT + "/etc/systemd/system"),
        "cgroup": probe("cgroup tree", cgroup_mount, "/sys/fs/cgroup"),
        "shm": ROOT + "/dev/shm",
        "state": STATE,
    }


def each(kind: str, look: Callable[[str], Any]) -> Dict[str, Any]:
    """What `look` says of each path that was asked for, by the path as asked."""
    return {path: probe(path, functools.partial(look, absolute(path))) for path in ASK[kind]}


def asked_of_programs() -> Dict[str, Any]:
    """What other programs answer; they are asked at the same time, since each takes its time to start."""
    venvs = [absolute(path) for path in ASK["venvs"]]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        gpus = pool.submit(probe, "GPUs", lambda: once(venvs))
        systemd = pool.submit(probe, "systemd", manager, {})
        states = pool.submit(probe, "units", lambda: units(ASK["units"]), {})
        ports = pool.submit(probe, "listening ports", lambda: listeners(ASK["ports"], ASK["units"]), [])
        return {
            "gpus": gpus.result(), "systemd": systemd.result(), "units": states.result(), "listeners": ports.result(),
        }  # fmt: skip


def facts() -> Dict[str, Any]:
    told = asked_of_programs()
    machine = probe("memory", memory, {})
    kernel = probe("kernel log", kernel_log)
    places = paths(told["systemd"])
    version = re.match(r"\d+", told["systemd"].get("Version", "").lstrip("v"))
    room = probe("room in %s" % places["shm"], lambda: os.statvfs(places["shm"]))
    found = {
        "host": os.uname().nodename, "boot_id": read("/proc/sys/kernel/random/boot_id").strip(),
        "kernel": os.uname().release, "user": NAME, "uid": UID, "root": os.geteuid() == 0 or bool(ROOT),
        "paths": places, "python": "%d.%d.%d" % sys.version_info[:3],
        "tools": {name: shutil.which(name, path=SEARCH) for name in TOOLS},
        "cpus": os.cpu_count() or 1, "memory": machine.get("MemTotal"), "memory_available": machine.get("MemAvailable"),
        "limits": probe("limits", limits, {}), "disks": each("disks", disk), "venvs": each("venvs", venv),
        "folders": each("folders", folder), "files": probe("files", lambda: texts(ASK["read"]), {}),
        "shm_free": room.f_bavail * room.f_frsize if room else None,
        "kernel_log": kernel or [], "kernel_log_read": kernel is not None, "clock": time.time(),
        "expanded": {path: absolute(path) for kind in ("venvs", "folders", "disks", "read") for path in ASK[kind]},
    }  # fmt: skip
    if not found["root"]:
        missing.append("what only root can see: this login is not root and has no sudo without a password")
    return dict(told, **dict(found, missing=missing, systemd=int(version.group(0)) if version else None))


print(json.dumps(facts()))
