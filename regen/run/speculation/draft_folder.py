"""The draft's folder as the engine is given it: the config that was checked, everything else linked.

Made by each worker on its own machine, the same from the same draft and spec, under a path that holds no word an engine
could guess a method from. Complete or absent: it is built beside and renamed. Costs milliseconds for a local draft; a
draft on the hub is downloaded, as the engine would do.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regen.checkpoints import Checkpoint
from regen.data.checkpoint import read_checkpoint
from regen.data.model_files import LocalFiles
from regen.data.text import canonical_json, digest_of
from regen.errors import EngineStartFailed
from regen.spec import SpeculationSpec
from regen.speculative.draft import PATH_WORDS, Draft, text_config, whole
from regen.speculative.draft_config import engine_config


def make_draft_folder(speculation: SpeculationSpec, target_folder: Path, parent: Path | None = None) -> Path:
    """The folder to give to the engine; made if it is not there yet. `parent` is the temporary folder of this user.

    Raises EngineStartFailed, and OSError or ValueError where the draft cannot be had.
    """
    source = _source(speculation)
    checkpoint = read_checkpoint(str(source), LocalFiles(source), with_samples=False)
    if checkpoint.config is None:
        return source  # preflight has said so, and was told to go on
    config = _checked(checkpoint, speculation, target_folder)
    folder = _place(parent or _own_folder(), source, config, checkpoint) / "draft"
    _refuse_words(folder, speculation)
    if not folder.exists():
        _build(folder, source, config)
    return folder


def checked_config(speculation: SpeculationSpec, target_folder: Path) -> dict[str, Any]:
    """The config that the engine is given for this draft. Empty where the draft has none. Raises as above."""
    source = _source(speculation)
    checkpoint = read_checkpoint(str(source), LocalFiles(source), with_samples=False)
    return {} if checkpoint.config is None else _checked(checkpoint, speculation, target_folder)


def _checked(checkpoint: Checkpoint, speculation: SpeculationSpec, target_folder: Path) -> dict[str, Any]:
    return engine_config(Draft(checkpoint, speculation), _layers(target_folder))


def _source(speculation: SpeculationSpec) -> Path:
    name = speculation.draft or ""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.resolve()
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, revision=speculation.args.get("revision")))


def _layers(target_folder: Path) -> int | None:
    config = json.loads((target_folder / "config.json").read_text(encoding="utf-8"))
    return whole(text_config(config), "num_hidden_layers", "n_layer", "n_layers")


def _own_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"regen-drafts-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise EngineStartFailed(f"{folder} belongs to another user; set TMPDIR to a folder of your own")
    return folder


def _place(parent: Path, source: Path, config: Mapping[str, Any], checkpoint: Checkpoint) -> Path:
    names = sorted(path.name for path in source.iterdir())
    content = canonical_json([str(source), names, config, checkpoint.config])
    return parent / digest_of(content.encode("ascii")).hex()


def _refuse_words(folder: Path, speculation: SpeculationSpec) -> None:
    found = [word for word in PATH_WORDS if word in str(folder).lower()]
    if found and speculation.method in ("draft_model", "mtp", "medusa"):
        raise EngineStartFailed(
            f"the draft's folder would be {folder}, and vLLM takes {found[0]!r} in it for the method although"
            f" {speculation.method!r} is given; set TMPDIR to a path without that word"
        )


def _build(folder: Path, source: Path, config: Mapping[str, Any]) -> None:
    """Workers of one machine may do this at once: the first rename wins, and all of them have made the same."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix="making-"))
    try:
        for path in source.iterdir():
            if path.name != "config.json":
                (temporary / path.name).symlink_to(path)
        (temporary / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        temporary.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
