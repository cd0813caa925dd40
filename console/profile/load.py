"""Profiles by path and by name: found, read, checked, with every problem at once.

A profile is looked for in the folders given with `--profiles`, then in the user's
(`$XDG_CONFIG_HOME/relaunch/profiles`), then among those that ship. The first file of that name wins, so that a copy in
the user's folder overrides a shipped one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from console.errors import InvalidFile, Problem, UsageError
from console.profile import rules
from console.profile.model import Profile
from console.profile.yamlio import decode, nearest, read_bounded

SHIPPED = Path(__file__).resolve().parents[2] / "profiles" / "models"
_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Listed:
    """One profile file: its profile, or the problems that keep it from being one."""

    name: str
    path: Path
    profile: Profile | None
    problems: tuple[Problem, ...] = ()

    @property
    def shipped(self) -> bool:
        return self.path.parent == SHIPPED


def parse_profile(source: str | bytes, *, file: str) -> tuple[Profile | None, tuple[Problem, ...]]:
    """The profile that `source` holds, or None and every problem of form, type and rule, in the order of the file."""
    return decode(source, Profile, file=file, rules=rules.problems)


def load_profile(path: Path) -> Profile:
    """The profile in the file at `path`. Raises `InvalidFile` with every problem, `UsageError` when it can't be read."""
    profile, problems = _read(path)
    if profile is None:
        raise InvalidFile(problems)
    return profile


def lint(path: Path) -> tuple[Problem, ...]:
    """Every problem of the profile at `path`; none means it can be deployed as far as the file alone can tell."""
    return _read(path)[1]


def _read(path: Path) -> tuple[Profile | None, tuple[Problem, ...]]:
    profile, problems = parse_profile(read_bounded(path), file=str(path))
    if profile is not None and profile.name != path.stem:
        wrong = Problem(
            str(path), 1, 1, "name", f"the name is {profile.name}, the file's is {path.stem}; make them equal"
        )
        return None, (wrong,)
    return profile, problems


def profile_folders(extra: Iterable[Path] = (), environment: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Where profiles are looked for, first match first; folders that are not there are left in."""
    environ = os.environ if environment is None else environment
    config = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".config")
    return (*extra, Path(config) / "relaunch" / "profiles", SHIPPED)


def profile_files(folders: Iterable[Path] | None = None) -> dict[str, Path]:
    """Path by profile name, over all folders; the first folder that has a name wins."""
    found: dict[str, Path] = {}
    for folder in profile_folders() if folders is None else folders:
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                if path.suffix in _SUFFIXES and path.is_file():
                    found.setdefault(path.stem, path)
    return found


def find_profile(name: str, folders: Iterable[Path] | None = None) -> Profile:
    """The profile called `name`, or in the file `name` when that is a path. Raises `UsageError` that names the nearest
    known one, and what `load_profile` raises."""
    return load_profile(profile_path(name, folders))


def profile_path(name: str, folders: Iterable[Path] | None = None) -> Path:
    """The file that `name` means: itself when it is a path (it has a slash or ends in .yaml), else by its stem."""
    if "/" in name or name.endswith(_SUFFIXES):
        return Path(name).expanduser()
    files = profile_files(folders)
    if name in files:
        return files[name]
    near = nearest(name, files)
    remedy = f"did you mean {near}?" if near else f"known: {', '.join(sorted(files)) or 'none'}"
    raise UsageError(f"there is no profile {name!r}", remedy)


def list_profiles(folders: Iterable[Path] | None = None) -> tuple[Listed, ...]:
    """Every profile that can be found, broken ones with their problems; one broken file hides no other."""
    listed = []
    for name, path in sorted(profile_files(folders).items()):
        try:
            profile, problems = _read(path)
        except UsageError as error:
            profile, problems = None, (Problem(str(path), 1, 1, "file", error.message),)
        listed.append(Listed(name, path, profile, problems))
    return tuple(listed)


def describe(profile: Profile) -> str:
    """A profile for people: one line per thing an operator asks of it."""
    flags = ", ".join(sorted(profile.serve.flags)) or "none"
    points = ", ".join(str(point.concurrency) for point in profile.throughput.points) or "none"
    rows = (
        ("profile", profile.name + (f", {profile.title}" if profile.title else "")),
        ("model", f"{profile.model.repo} at {profile.model.revision[:12]}, served as {profile.model.served_name}"),
        ("folder", profile.model.folder),
        ("vLLM", f"{profile.vllm.version} in {profile.vllm.venv}"),
        ("serve", f"tensor parallel {profile.serve.tensor_parallel_size}, flags {flags}"),
        ("environment", ", ".join(sorted(profile.environment)) or "none"),
        ("KV cache", profile.kv_cache.policy),
        ("unit", f"{profile.service.unit} as {profile.service.user}, {profile.service.host}:{profile.service.port}"),
        ("replaces", ", ".join(profile.replaces) or "nothing"),
        ("may remove", ", ".join(profile.space.may_remove) or "nothing"),
        ("ready", f"{len(profile.ready.prompts)} prompts must be answered sensibly"),
        ("load points", f"concurrency {points}; {len(profile.throughput.gates)} gates"),
        ("on failure", profile.on_failure),
    )
    return "\n".join(f"{name:<12} {value}" for name, value in rows)
