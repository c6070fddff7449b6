import json
import pickle
import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from regen.data.target import config_vocabulary, identity, resolve_target
from regen.errors import SpecError
from regen.spec import TargetSpec
from tests.toy_target import END_ID, VOCAB_SIZE, build_toy_target


@pytest.fixture
def toy(tmp_path):
    return build_toy_target(tmp_path / "toy")


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def resolved(folder, **fields):
    return resolve_target(TargetSpec(model=str(folder), **fields))


def test_a_local_folder_is_read_without_weights(toy):
    target = resolved(toy)
    assert target.folder == toy
    assert target.commit.startswith("local:")
    assert target.eos_token_ids == (END_ID,)
    assert target.context_tokens == 8192
    assert target.architectures == ("LlamaForCausalLM",)
    assert target.generation_config["temperature"] == 0.7
    assert pickle.loads(pickle.dumps(target)) == target


def test_identity_is_that_of_the_content_not_of_the_place(toy, tmp_path):
    copy = shutil.copytree(toy, tmp_path / "copy")
    assert identity(resolved(toy)) == identity(resolved(copy))
    assert set(identity(resolved(toy))) == {"target.commit", "target.tokenizer_digest", "target.template_digest"}


def test_each_digest_follows_its_own_files(toy):
    def changed_by(change):
        before = identity(resolved(toy))
        change()
        after = identity(resolved(toy))
        return {name for name in before if before[name] != after[name]}

    template = toy / "chat_template.jinja"
    assert changed_by(lambda: template.write_text(template.read_text() + "!")) == {"target.template_digest"}
    assert changed_by(lambda: edit(toy / "tokenizer_config.json", extra=1)) == {"target.tokenizer_digest"}
    assert changed_by(lambda: edit(toy / "config.json", rope_theta=2.0)) == {"target.commit"}
    assert changed_by(lambda: edit(toy / "generation_config.json", top_p=0.5)) == {"target.commit"}
    assert changed_by(lambda: (toy / "model.safetensors").write_bytes(b"12345678")) == {"target.commit"}


def test_a_template_inside_the_tokenizer_config_is_the_one_in_use(toy):
    template = (toy / "chat_template.jinja").read_text()
    before = identity(resolved(toy))
    (toy / "chat_template.jinja").unlink()
    edit(toy / "tokenizer_config.json", chat_template=template)
    assert identity(resolved(toy)) == before


def test_end_ids_are_those_of_the_generation_config_and_the_tokenizer(toy):
    edit(toy / "generation_config.json", eos_token_id=[7, 5])
    assert resolved(toy).eos_token_ids == (END_ID, 5, 7)


def test_no_generation_config_is_no_error(toy):
    (toy / "generation_config.json").unlink()
    target = resolved(toy)
    assert target.generation_config == {}
    assert target.eos_token_ids == (END_ID,)


def test_the_context_of_a_nested_config_is_found(toy):
    config = json.loads((toy / "config.json").read_text())
    del config["max_position_embeddings"]
    (toy / "config.json").write_text(json.dumps(config | {"text_config": {"max_position_embeddings": 4096}}))
    assert resolved(toy).context_tokens == 4096


def test_the_vocabulary_of_a_config_nested_or_not(toy):
    assert config_vocabulary(toy) == VOCAB_SIZE
    (toy / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 320}}))
    assert config_vocabulary(toy) == 320
    (toy / "config.json").write_text("{}")
    assert config_vocabulary(toy) == 0


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "chat_template.jinja"])
def test_what_is_missing_is_named_with_the_key(toy, missing):
    (toy / missing).unlink()
    with pytest.raises(SpecError, match=r"target\.model"):
        resolved(toy)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"target\.model.*nowhere: no such folder"):
        resolved(tmp_path / "nowhere")


def test_a_revision_of_a_local_folder_is_refused(toy):
    with pytest.raises(SpecError, match=r"target\.revision"):
        resolved(toy, revision="main")


def test_a_broken_config_is_named(toy):
    (toy / "config.json").write_text("{")
    with pytest.raises(SpecError, match=r"target\.model.*config\.json"):
        resolved(toy)


def test_own_arguments_of_the_template_are_refused(toy):
    with pytest.raises(SpecError, match=r"target\.template_kwargs\.tokenize"):
        resolved(toy, template_kwargs={"tokenize": False})


# --- the hub, without a network ------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return huggingface_hub


def test_a_branch_is_resolved_to_a_commit_and_no_weights_are_asked_for(toy, hub, monkeypatch):
    asked: dict[str, Any] = {}

    def snapshot_download(model, *, revision, allow_patterns):
        asked.update(revision=revision, patterns=allow_patterns)
        return str(toy)

    info = lambda self, model, revision: SimpleNamespace(sha="c0ffee" if revision == "main" else None)  # noqa: E731
    monkeypatch.setattr(hub.HfApi, "model_info", info)
    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    target = resolve_target(TargetSpec(model="org/model", revision="main"))
    assert (target.commit, asked["revision"]) == ("c0ffee", "c0ffee")
    assert not any("safetensors" in pattern or pattern in ("*", "*.bin", "*.py") for pattern in asked["patterns"])


def test_a_model_that_the_hub_does_not_have_is_a_spec_error(hub, monkeypatch):
    def model_info(self, model, revision):
        raise OSError("404 not there")

    monkeypatch.setattr(hub.HfApi, "model_info", model_info)
    with pytest.raises(SpecError, match=r"target\.model: org/model .*404 not there"):
        resolve_target(TargetSpec(model="org/model"))


def test_offline_the_cache_is_used_and_says_the_commit(tmp_path, hub, monkeypatch):
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = tmp_path / "cache" / "models--org--model"
    build_toy_target(repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    assert resolve_target(TargetSpec(model="org/model")).commit == commit
    with pytest.raises(SpecError, match=r"HF_HUB_OFFLINE"):
        resolve_target(TargetSpec(model="org/other"))
