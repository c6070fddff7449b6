"""The files of a model, in a folder or on the hub: names, sizes, and bytes from anywhere in them.

On the hub, what the local cache has is read from there, the rest in ranges by HTTP: one request each, nothing kept.
With `HF_HUB_OFFLINE=1` only the cache is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class ModelFiles(Protocol):
    """`path` is None for a file that is not on this machine. Reading one that is not there: FileNotFoundError."""

    def names(self) -> list[str]: ...
    def size(self, name: str) -> int: ...
    def read(self, name: str, start: int, length: int) -> bytes: ...
    def path(self, name: str) -> Path | None: ...


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """A folder. A link that leads nowhere is listed, and has no size."""

    folder: Path

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if not path.is_dir())

    def size(self, name: str) -> int:
        return (self.folder / name).stat().st_size

    def read(self, name: str, start: int, length: int) -> bytes:
        with (self.folder / name).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def path(self, name: str) -> Path | None:
        return self.folder / name


@dataclass(frozen=True, slots=True)
class HubFiles:
    """One commit of a model on the hub."""

    name: str
    commit: str
    sizes: dict[str, int]

    @classmethod
    def open(cls, name: str, revision: str | None) -> HubFiles | LocalFiles:
        """Raises OSError or ValueError when the hub, or offline the cache, does not have it."""
        from huggingface_hub import HfApi, constants, snapshot_download

        if constants.HF_HUB_OFFLINE:
            return LocalFiles(Path(snapshot_download(name, revision=revision, local_files_only=True)))
        info = HfApi().model_info(name, revision=revision, files_metadata=True)
        sizes = {file.rfilename: int(file.size or 0) for file in info.siblings or [] if "/" not in file.rfilename}
        return cls(name, str(info.sha), sizes)

    def names(self) -> list[str]:
        return sorted(self.sizes)

    def size(self, name: str) -> int:
        if name not in self.sizes:
            raise FileNotFoundError(name)
        return self.sizes[name]

    def read(self, name: str, start: int, length: int) -> bytes:
        from huggingface_hub import get_session, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

        if name not in self.sizes:
            raise FileNotFoundError(name)
        if length == 0 or start >= self.sizes[name]:
            return b""
        if (cached := self.path(name)) is not None:
            return LocalFiles(cached.parent).read(name, start, length)
        url = hf_hub_url(self.name, name, revision=self.commit)
        headers = {**build_hf_headers(), "range": f"bytes={start}-{start + length - 1}"}
        response = get_session().get(url, headers=headers, follow_redirects=True)
        hf_raise_for_status(response)
        # A server that knows no ranges sends the whole file.
        content: bytes = response.content
        return content[start : start + length] if response.status_code == 200 else content

    def path(self, name: str) -> Path | None:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self.name, name, revision=self.commit)
        return Path(found) if isinstance(found, str) else None


def model_files(name: str, revision: str | None = None) -> ModelFiles:
    """The files of a folder, or of a model on the hub.

    Raises OSError or ValueError where neither is there; the message is the hub's.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return LocalFiles(folder.resolve())
    return HubFiles.open(name, revision)
