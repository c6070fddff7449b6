"""Nothing that is read is run: no pickle from the store, no code out of bytes, no shell (docs/security.md).

The first half reads the source; the second hands a target, sources and templates with code in them to what reads them.
"""

from __future__ import annotations

import ast
import io
import json
import pickle
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from regen.checkpoints import FileProblem
from regen.data.template import load_template
from regen.data.torch_archive import read_archive
from regen.engines.vllm import engine_arguments
from regen.errors import RowRefused, SpecError
from regen.spec import SpeculationSpec, VllmEngineSpec, dump_spec
from tests.processes import regen_here
from tests.runs import make_spec
from tests.toy_target import build_toy_target

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted([*(ROOT / "regen").rglob("*.py"), *(ROOT / "deploy").rglob("*.py"), *(ROOT / "examples").rglob("*.py")])
# Bytes of these formats run code when they are read.
PICKLES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
ALLOWED_IMPORTS = {
    # Its own temporary files, which have no name, in the one process that writes and reads them.
    ("regen/data/shuffle.py", "pickle"),
    # The opcodes of a draft's `.bin`, with every name bound to an inert stand-in: the test below hands it a bad one.
    ("regen/data/torch_archive.py", "pickle"),
}
# Python's own, which other things are named after, too (a model's `eval`).
BUILTINS = {"eval", "exec", "__import__"}
# Called by name, or as the last part of one; what is handed over makes no difference.
CALLS = {
    "Template": "renders without the sandbox that transformers has",
    "from_string": "renders without the sandbox that transformers has",
    "system": "hands a line to a shell",
    "popen": "hands a line to a shell",
    "getoutput": "hands a line to a shell",
    "create_subprocess_shell": "hands a line to a shell",
    "mktemp": "names a file that somebody else may make first",
    "unsafe_load": "builds whatever the YAML names",
    "full_load": "builds whatever the YAML names",
    "read_pickle": "runs what the file names",
    "literal_eval": "reads Python where the data is JSON",
}
ARGUMENTS = {"shell": True, "allow_pickle": True, "trust_remote_code": True, "weights_only": False}
Finding = tuple[str, str]


def findings(tree: ast.Module) -> Iterator[Finding]:
    """(what, the word) for everything in a file that must not be there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (("import", name.name.partition(".")[0]) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield ("import", (node.module or "").partition(".")[0])
        elif isinstance(node, ast.Call):
            yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[Finding]:
    name, owner = _name(node.func)
    if name in CALLS or (isinstance(node.func, ast.Name) and name in BUILTINS) or (owner, name) == ("torch", "load"):
        yield ("call", name)
    if (owner, name) in (("yaml", "load"), ("yaml", "load_all")):
        yield ("yaml", next((ast.unparse(word.value) for word in node.keywords if word.arg == "Loader"), "none"))
    for word in node.keywords:
        if word.arg in ARGUMENTS and isinstance(word.value, ast.Constant) and word.value.value is ARGUMENTS[word.arg]:
            yield ("argument", word.arg)


def _name(function: ast.expr) -> tuple[str, str]:
    if isinstance(function, ast.Attribute):
        return function.attr, function.value.id if isinstance(function.value, ast.Name) else ""
    return (function.id, "") if isinstance(function, ast.Name) else ("", "")


def bad(path: str, found: Finding) -> bool:
    what, word = found
    if what == "import":
        return word in PICKLES and (path, word) not in ALLOWED_IMPORTS
    if what == "yaml":
        return word != "_UniqueKeys"  # of regen/spec.py: below
    return True


def test_no_file_runs_what_it_reads() -> None:
    found = {}
    for path in FILES:
        name = str(path.relative_to(ROOT))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found[name] = [finding for finding in findings(tree) if bad(name, finding)]
    assert len(found) > 200
    assert {name: faults for name, faults in found.items() if faults} == {}


def test_the_loader_of_specs_builds_plain_values_only() -> None:
    import yaml

    from regen.spec import _UniqueKeys

    assert issubclass(_UniqueKeys, yaml.SafeLoader)
    with pytest.raises(yaml.constructor.ConstructorError, match="python/object"):
        yaml.load("!!python/object/apply:os.getcwd []", Loader=_UniqueKeys)


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from marshal import loads",
        "jinja2.Template(text)",
        "jinja2.Environment().from_string(text)",
        "eval(text)",
        "os.system(line)",
        "subprocess.run(line, shell=True)",
        "numpy.load(path, allow_pickle=True)",
        "torch.load(path)",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.unsafe_load(text)",
        "AutoTokenizer.from_pretrained(folder, trust_remote_code=True)",
        "tempfile.mktemp()",
    ],
)
def test_each_rule_finds_what_it_is_for(line: str) -> None:
    assert [found for found in findings(ast.parse(line)) if bad("regen/some.py", found)]


# --- what a file may bring ------------------------------------------------------------------------------------------


class _Canary:
    """Unpickled, it writes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.write_text, (self._path, "code ran")


def test_a_drafts_pickle_is_read_and_not_run(tmp_path: Path) -> None:
    stream = io.BytesIO()
    pickle.dump({"fc.weight": _Canary(tmp_path / "canary")}, stream)
    pickle.loads(stream.getvalue())
    (tmp_path / "canary").unlink()  # raises if it were no canary
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", stream.getvalue())
    found = read_archive(tmp_path / "pytorch_model.bin")
    assert isinstance(found, FileProblem)
    assert "no tensor record" in found.detail
    assert not (tmp_path / "canary").exists()


# --- what a target may bring ----------------------------------------------------------------------------------------


def target_with_code(folder: Path, canary: Path) -> Path:
    """A target whose config and tokenizer name Python files beside them. Each, imported, writes the canary."""
    build_toy_target(folder)
    line = f"__import__('pathlib').Path({str(canary)!r}).write_text('code ran')\n"
    for name in ("configuration_own", "tokenization_own"):
        (folder / f"{name}.py").write_text(f"{line}class Own: ...\n", encoding="utf-8")
    tokenizer_maps = {"AutoTokenizer": ["tokenization_own.Own", "tokenization_own.Own"]}
    named = {"AutoConfig": "configuration_own.Own", **tokenizer_maps}
    for file, changes in (
        ("config.json", {"auto_map": named}),
        ("tokenizer_config.json", {"auto_map": tokenizer_maps, "tokenizer_class": "Own"}),
    ):
        known = json.loads((folder / file).read_text(encoding="utf-8"))
        (folder / file).write_text(json.dumps({**known, **changes}), encoding="utf-8")
    return folder


def test_code_that_comes_with_a_target_does_not_run_unless_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is it asked for on the terminal. Every command loads the tokenizer by `load_template`, and no other way:
    the second assertion is what makes the first one enough."""
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    target = target_with_code(tmp_path / "target", tmp_path / "canary")
    with suppress(SpecError):  # or it loads: there is a tokenizer.json
        load_template(target, False, {})
    assert not (tmp_path / "canary").exists()
    loaders = {
        str(path.relative_to(ROOT))
        for path in FILES
        if path.is_relative_to(ROOT / "regen") and "from_pretrained(" in path.read_text(encoding="utf-8")
    }
    assert loaders == {"regen/data/template.py"}
    with suppress(Exception):  # it is no tokenizer: what is tested is that the canary is one
        load_template(target, True, {})
    assert (tmp_path / "canary").exists()


@pytest.mark.parametrize("command", ["plan", "preflight", "run", "estimate"])
def test_no_command_runs_code_of_a_target(tmp_path: Path, command: str) -> None:
    spec = make_spec(tmp_path, rows=3)
    target_with_code(tmp_path / "target", tmp_path / "canary")
    (tmp_path / "spec.yaml").write_text(dump_spec(spec), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regen.run.command.drive", refuse)
        done = regen_here(command, "spec.yaml", cwd=tmp_path)
    assert done.returncode in (0, 2), done.stderr
    assert not (tmp_path / "canary").exists()


def refuse(*arguments: object) -> None:
    raise SpecError("no engine in this test")


def test_an_engine_is_told_to_run_no_code_of_its_model() -> None:
    speculation = SpeculationSpec(method="eagle3", draft="some/folder", num_tokens=3)
    assert engine_arguments("m", None, False, VllmEngineSpec(), speculation)["trust_remote_code"] is False
    with pytest.raises(ValueError, match="trust_remote_code"):
        VllmEngineSpec(args={"trust_remote_code": True})


# --- what a template may do -----------------------------------------------------------------------------------------


def with_template(folder: Path, text: str) -> Path:
    (build_toy_target(folder) / "chat_template.jinja").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ lipsum.__globals__['os'].popen('id').read() }}", "SecurityError"),
        ("{{ cycler.__init__.__globals__.os }}", "SecurityError"),
        ("{{ raise_exception.__globals__['os'] }}", "SecurityError"),
        ("{{ messages.append(messages) }}", "SecurityError"),
        ("{{ '{0.__class__.__mro__}'.format(1) }}", "SecurityError"),
        ("{% for number in range(10**9) %}x{% endfor %}", "OverflowError"),
        ("{% for message in messages %}{{ message.content }", "TemplateSyntaxError"),
    ],
)
def test_a_template_that_leaves_its_sandbox_is_refused_with_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SpecError, match=f"the chat template of .* cannot be used: {said}") as refused:
        load_template(with_template(tmp_path, text), False, {})
    assert "sandbox" in str(refused.value)


def test_a_template_that_reads_files_or_refuses_short_conversations_costs_rows_only(tmp_path: Path) -> None:
    """There is no loader in the sandbox; and what a template says of one conversation is no word on others."""
    for number, text in enumerate(("{% include '/etc/passwd' %}", "{{ raise_exception('a system prompt, please') }}")):
        template = load_template(with_template(tmp_path / str(number), text), False, {})
        with pytest.raises(RowRefused):
            template.render(({"role": "user", "content": "?"},), None, None)
