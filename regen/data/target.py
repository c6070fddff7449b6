"""The target as it is on disk: which commit, which tokenizer, which template, which defaults.

Guarantees: no weight is read or downloaded; a branch is resolved to a commit; the digests are over content, so that
an edited local folder shows. Does not know the engine. Costs a load of the tokenizer (some seconds, mostly imports),
and on the hub two requests plus the small files. With `HF_HUB_OFFLINE=1` only the local cache is looked at.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regen.data.profiles import Profile, find_profile, with_reasoning
from regen.data.template import load_template
from regen.data.text import canonical_json, digest_of
from regen.errors import SpecError
from regen.spec import TargetSpec

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "*.tiktoken",
    "tekken.json",
)
_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja")
SAMPLE_BYTES = 1 << 16
_WEIGHT_ENDINGS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")


@dataclass(frozen=True, slots=True)
class Target:
    """What is known of the target without loading it.

    `folder` holds config, tokenizer and template files. `commit` is the hub's, or `local:` and a digest over the
    configs and the names, sizes and samples of the weight files. `context_tokens` is None where the config has none.
    `profile` is the family's, `template_source` the chat template's text.
    """

    model: str
    folder: Path
    commit: str
    tokenizer_digest: str
    template_digest: str
    generation_config: Mapping[str, object]
    eos_token_ids: tuple[int, ...]
    context_tokens: int | None
    architectures: tuple[str, ...]
    profile: Profile
    template_source: str


def resolve_target(spec: TargetSpec) -> Target:
    """Find the target, locally or on the hub, and read everything small about it.

    Raises SpecError naming `target.model` (or `target.revision`) and what to do: not found, no config, no tokenizer, no
    chat template, `target.reasoning` where the template has no switch for it.
    """
    folder, commit = _locate(spec)
    config = _read_json(spec, folder / "config.json")
    if config is None:
        raise SpecError(f"target.model: {spec.model}: {folder} has no config.json, so it is not a model's folder")
    _require_code_allowed(spec, config, folder)
    generation_config = _read_json(spec, folder / "generation_config.json") or {}
    template = load_template(folder, spec.trust_remote_code, spec.template_kwargs)
    profile = find_profile(spec, config, template.source)
    with_reasoning(spec, profile, template.source)  # what cannot be is said now
    return Target(
        model=spec.model,
        folder=folder,
        commit=commit or _local_commit(folder),
        tokenizer_digest=_tokenizer_digest(folder),
        template_digest=digest_of(template.source.encode("utf-8", "surrogatepass")).hex(),
        generation_config=generation_config,
        eos_token_ids=_eos_token_ids(generation_config, config, template.eos_token_id),
        context_tokens=_text_number(config, "max_position_embeddings"),
        architectures=tuple(str(name) for name in config.get("architectures") or ()),
        profile=profile,
        template_source=template.source,
    )


def config_vocabulary(folder: Path) -> int:
    """`vocab_size` of a target's config.json, which may be padded beyond its tokenizer; 0: it says nothing of it."""
    return _text_number(json.loads((folder / "config.json").read_bytes()), "vocab_size") or 0


def identity(target: Target) -> dict[str, str]:
    """The target's part of the run's fingerprint, under dotted keys."""
    return {
        "target.commit": target.commit,
        "target.tokenizer_digest": target.tokenizer_digest,
        "target.template_digest": target.template_digest,
    }


def _locate(spec: TargetSpec) -> tuple[Path, str | None]:
    local = Path(spec.model).expanduser()
    if local.is_dir():
        if spec.revision is not None:
            raise SpecError(f"target.revision: {spec.revision!r} means nothing for the local folder {spec.model}")
        return local.resolve(), None
    if local.exists() or spec.model.startswith(("/", "./", "../", "~")):
        raise SpecError(f"target.model: {spec.model}: no such folder")
    return _from_hub(spec)


def _from_hub(spec: TargetSpec) -> tuple[Path, str | None]:
    from huggingface_hub import HfApi, constants, snapshot_download

    patterns = ["config.json", "generation_config.json", *_TOKENIZER_FILES, *_TEMPLATE_FILES]
    if spec.trust_remote_code:
        patterns.append("*.py")
    try:
        if constants.HF_HUB_OFFLINE:
            folder = Path(snapshot_download(spec.model, revision=spec.revision, local_files_only=True))
            return folder, folder.name
        commit = HfApi().model_info(spec.model, revision=spec.revision).sha
        folder = Path(snapshot_download(spec.model, revision=commit, allow_patterns=patterns))
    except (OSError, ValueError) as error:
        raise SpecError(_not_found(spec, error, constants.HF_HUB_OFFLINE)) from error
    return folder, commit


def _not_found(spec: TargetSpec, error: Exception, is_offline: bool) -> str:
    what = f"{spec.model}" + (f" at revision {spec.revision!r}" if spec.revision else "")
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    if is_offline:
        where, advice = "in the local cache (HF_HUB_OFFLINE is set)", "download it first, or name a local folder"
    else:
        where, advice = "as a folder or on the hub", "check the name, your access and the network, or name a folder"
    return f"target.model: {what} was not found {where}: {first_line}. To go on, {advice}."


def _require_code_allowed(spec: TargetSpec, config: Mapping[str, Any], folder: Path) -> None:
    """Said before the tokenizer is tried: its own message does not name the setting."""
    profile = find_profile(spec, config, template_source="")
    if profile.needs_remote_code and not spec.trust_remote_code and not (folder / "tokenizer.json").exists():
        raise SpecError(
            f"target.trust_remote_code: the tokenizer of {spec.model} (profile {profile.name}) is Python code that"
            " comes with the model: read it, and set this to true"
        )


def _read_json(spec: TargetSpec, path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SpecError(f"target.model: {spec.model}: {path.name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise SpecError(f"target.model: {spec.model}: {path.name} is not a JSON object")
    return value


def _local_commit(folder: Path) -> str:
    parts = []
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        parts += [name.encode(), path.read_bytes() if path.exists() else b""]
    for path in sorted(folder.iterdir()):
        if path.suffix in _WEIGHT_ENDINGS:
            parts += [path.name.encode(), str(path.stat().st_size).encode(), *_sampled(path)]
    return "local:" + digest_of(*parts).hex()


def _sampled(path: Path) -> list[bytes]:
    """Beginning, middle and end of a weight file: retrained weights have the same names and sizes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        samples = []
        for start in (0, size // 2, max(0, size - SAMPLE_BYTES)):
            file.seek(start)
            samples.append(file.read(SAMPLE_BYTES))
    return samples


def _tokenizer_digest(folder: Path) -> str:
    made = hashlib.blake2b(digest_size=16)
    for path in _tokenizer_files(folder):
        made.update(digest_of(path.name.encode(), _tokenizer_content(path)))
    return made.hexdigest()


def _tokenizer_files(folder: Path) -> Iterator[Path]:
    found = {path for pattern in _TOKENIZER_FILES for path in folder.glob(pattern)}
    return iter(sorted(found))


def _tokenizer_content(path: Path) -> bytes:
    """The chat template may stand in tokenizer_config.json; it has a digest of its own."""
    content = path.read_bytes()
    if path.name != "tokenizer_config.json":
        return content
    config = json.loads(content)
    config.pop("chat_template", None)
    return canonical_json(config).encode("ascii")


def _eos_token_ids(
    generation_config: Mapping[str, object], config: Mapping[str, object], tokenizer_eos: int | None
) -> tuple[int, ...]:
    """As engines do: the generation config's (else the config's) ids, and the tokenizer's own."""
    given = generation_config.get("eos_token_id", config.get("eos_token_id"))
    ids = given if isinstance(given, list) else [given]
    return tuple(sorted({int(token) for token in [*ids, tokenizer_eos] if isinstance(token, int)}))


def _text_number(config: Mapping[str, Any], name: str) -> int | None:
    """Of the model, or of its part for text."""
    for part in (config, config.get("text_config") or {}):
        found = part.get(name)
        if isinstance(found, int):
            return found
    return None
