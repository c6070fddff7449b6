"""The catalogue: broken drafts, each with the code that it must give; whole ones, none of which may be refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from regen.speculative.evidence import Finding, Severity
from regen.speculative.page import page
from regen.speculative.preflight import ALL_CHECKS
from tests.heads import (
    DRAFT_VOCABULARY,
    ENGINE,
    HIDDEN,
    TARGET,
    VOCABULARY,
    Head,
    Values,
    eagle,
    eagle3,
    judge,
    layer,
    long_table,
    mask,
    weight,
    whole_model,
)

REFUSE, WARN, NOTE = Severity.REFUSE, Severity.WARN, Severity.NOTE
REAL_HEAD = Path(__file__).resolve().parents[4] / "shared" / "data" / "heads" / "smollm2-eagle3"
NAN = b"\xc0\x7f"


@dataclass
class Case:
    """One draft, one spec, one target. `change` breaks or varies what `head` makes."""

    name: str
    code: str = ""
    head: Callable[[], Head] | None = eagle3
    change: Callable[[Head], Any] = lambda head: None
    speculation: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    target: dict[str, Any] = field(default_factory=dict)
    target_head: Callable[[], Head] | None = None
    target_files: dict[str, bytes | None] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def judged(self, folder: Path) -> list[Finding]:
        target = (
            Head({**TARGET, **self.target}, {}, self.target_files) if self.target_head is None else self.target_head()
        )
        target_folder = target.write(folder / "target")
        draft = None
        if self.head is not None:
            head = self.head()
            self.change(head)
            draft = head.write(folder / "draft")
        return judge(target_folder, draft, self.speculation, self.sampling, **dict(self.options))


def config(**values: Any) -> Callable[[Head], Any]:
    return lambda head: head.config.update(values)


def without(*keys: str) -> Callable[[Head], Any]:
    return lambda head: [head.config.pop(key, None) for key in keys]


def no_tensor(*names: str) -> Callable[[Head], Any]:
    return lambda head: [head.tensors.pop(name) for name in names]


def tensor(name: str, values: Values) -> Callable[[Head], Any]:
    return lambda head: head.tensors.update({name: values})


def files(**contents: bytes | None) -> Callable[[Head], Any]:
    return lambda head: head.files.update({name.replace("__", "."): content for name, content in contents.items()})


def both(*changes: Callable[[Head], Any]) -> Callable[[Head], Any]:
    return lambda head: [change(head) for change in changes]


def ids(top: object = None, nested: object = None, **eagle_config: Any) -> Callable[[Head], Any]:
    def change(head: Head) -> None:
        head.config["eagle_aux_hidden_state_layer_ids"] = top
        head.config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": nested, **eagle_config}

    return change


def cut(head: Head) -> None:
    """The last 100 bytes never came."""
    header = {"w": {"dtype": "BF16", "shape": [100], "data_offsets": [0, 200]}}
    text = json.dumps(header).encode()
    head.files["model.safetensors"] = len(text).to_bytes(8, "little") + text + bytes(100)


def speculators(head: Head) -> None:
    """The same head as `speculators` saves it."""
    own = ("draft_vocab_size", "eagle_aux_hidden_state_layer_ids")
    kept = {name: head.config[name] for name in own}
    inner = {name: value for name, value in head.config.items() if name not in (*own, "architectures", "eagle_config")}
    head.config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": "some/target", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": inner,
        **kept,
    }
    for name in list(head.tensors):
        head.tensors[name.replace("midlayer.", "layers.0.")] = head.tensors.pop(name)


def with_layers_named_by_number(head: Head) -> None:
    for name in list(head.tensors):
        head.tensors[name.replace("midlayer.", "model.layers.0.")] = head.tensors.pop(name)


def latent_attention(head: Head) -> None:
    """DeepSeek's attention: no heads in the rows of q_proj and k_proj."""
    for name in ("q_proj", "k_proj", "v_proj"):
        del head.tensors[f"midlayer.self_attn.{name}.weight"]
    head.tensors["midlayer.self_attn.q_a_proj.weight"] = weight(16, 2 * HIDDEN)
    head.tensors["midlayer.self_attn.kv_a_proj_with_mqa.weight"] = weight(24, 2 * HIDDEN)
    head.config |= {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2", "kv_lora_rank": 16}


def dflash(ids_key: list[int] | None, width: int = 3 * HIDDEN) -> Head:
    """A block drafter: two ordinary layers over the fused states."""
    config = {**TARGET, "architectures": ["DFlashDraftModel"], "num_hidden_layers": 2, "block_size": 16}
    config["dflash_config"] = {"mask_token_id": 1, "target_layer_ids": ids_key}
    tensors = {"fc.weight": weight(HIDDEN, width), "hidden_norm.weight": weight(HIDDEN), "norm.weight": weight(HIDDEN)}
    return Head(config, tensors | layer("layers.0") | layer("layers.1"))


def wide_target(head: Head) -> None:
    head.config["target_hidden_size"] = 64
    head.tensors["fc.weight"] = weight(HIDDEN, 3 * 64)
    head.tensors["embed_tokens.weight"] = weight(VOCABULARY, HIDDEN)


def mtp_target() -> Head:
    head = whole_model(layers=2)
    head.config["num_nextn_predict_layers"] = 1
    head.config["architectures"] = ["DeepseekV3ForCausalLM"]
    head.tensors["model.layers.2.eh_proj.weight"] = weight(HIDDEN, 2 * HIDDEN)
    return head


def mtp_left_out() -> Head:
    head = mtp_target()
    del head.tensors["model.layers.2.eh_proj.weight"]
    return head


def tokenizer(shift: int = 0, size: int = 100) -> bytes:
    vocabulary = {f"t{number}": (number + shift) % size for number in range(size)}
    return json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}).encode()


INDEX = json.dumps({"weight_map": {"fc.weight": "model-00001-of-00002.safetensors"}}).encode()
SCHEDULE = "num_speculative_tokens_per_batch_size"
NO_LAYERS = json.dumps({"weight_map": {"model.layers.0.mlp.up_proj.weight": "a.safetensors"}}).encode()

BROKEN = [
    # --- method
    Case("eagle for an eagle3 head", "method-mismatch", speculation={"method": "eagle"}),
    Case(
        "eagle, and a name that vLLM lets pass",
        "method-mismatch",
        change=config(architectures=["Eagle3LlamaForCausalLM"]),
        speculation={"method": "eagle"},
    ),
    Case(
        "eagle, and only the weights tell",
        "method-mismatch",
        change=both(config(architectures=["LlamaForCausalLM"]), without("eagle_config", "draft_vocab_size")),
        speculation={"method": "eagle"},
    ),
    Case("eagle3 for an eagle head", "method-mismatch", head=eagle),
    Case("a head as a draft model", "method-mismatch", speculation={"method": "draft_model"}),
    Case("a draft model as a head", "method-mismatch", head=whole_model, speculation={"method": "eagle3"}),
    Case(
        "eagle weights under an eagle3 name",
        "weights-contradict-config",
        head=eagle,
        change=config(architectures=["LlamaForCausalLMEagle3"]),
    ),
    Case(
        "no class for the draft",
        "draft-architecture-unknown",
        change=config(architectures=["GemmaForCausalLM"]),
    ),
    Case("no architecture", "draft-architecture-unknown", change=without("architectures")),
    Case(
        "the target's class has no inner states",
        "target-cannot-feed-draft",
        options={"engine": replace(ENGINE, target_feeds_eagle3=False)},
    ),
    Case("no prediction layers", "mtp-absent", head=None, speculation={"method": "mtp"}),
    Case(
        "zero prediction layers",
        "mtp-absent",
        head=None,
        speculation={"method": "mtp"},
        target={"num_nextn_predict_layers": 0},
    ),
    Case(
        "prediction layers left out by a conversion",
        "mtp-absent",
        head=None,
        speculation={"method": "mtp"},
        target_head=mtp_left_out,
    ),
    Case(
        "prediction layers left out, by the index alone",
        "mtp-absent",
        head=None,
        speculation={"method": "mtp"},
        target={"num_nextn_predict_layers": 1},
        target_files={"model.safetensors.index.json": NO_LAYERS},
    ),
    Case(
        "a word in the target's path",
        "path-decides-method",
        head=None,
        target_head=mtp_target,
        speculation={"method": "mtp", "num_tokens": 1},
        options={"target_path": "/models/kimi-eagle3-base"},
    ),
    Case("parallel drafting not trained", "parallel-drafting", speculation={"args": {"parallel_drafting": True}}),
    Case(
        "another verifier",
        "verifier-mismatch",
        change=both(
            speculators,
            lambda head: head.config["speculators_config"]["verifier"].update(architectures=["Qwen3ForCausalLM"]),
        ),
    ),
    # --- layers
    Case("no layer ids", "layer-ids-missing", change=ids()),
    Case("layer ids as text", "layer-ids-malformed", change=ids(["2", "6", "9"])),
    Case("a layer beyond the target", "layer-ids-out-of-range", change=ids([2, 6, 13], [2, 6, 13])),
    Case("a layer twice", "layer-ids-out-of-range", change=ids([2, 6, 6], [2, 6, 6])),
    Case("a layer below zero", "layer-ids-out-of-range", change=ids([-1, 6, 9], [-1, 6, 9])),
    Case("two layers for three states", "layer-ids-count", change=ids([2, 6], [2, 6])),
    Case(
        "no ids, and a fusion layer of four states",
        "layer-ids-count",
        change=both(ids(), tensor("fc.weight", weight(HIDDEN, 4 * HIDDEN))),
    ),
    Case("a count that says otherwise", "layer-ids-count", change=config(num_aux_hidden_states=4)),
    Case("two keys, two lists", "layer-ids-conflict", change=ids([2, 6, 9], [3, 5, 9])),
    Case("ids where runner V2 does not look", "layer-ids-unread", change=ids(None, [2, 6, 9])),
    Case("SpecForge's default as input", "layer-convention", change=ids([1, 5, 8], [1, 5, 8])),
    Case("vLLM's default as output", "layer-convention", speculation={"layer_convention": "output"}),
    Case("both conventions at once", "layer-convention", change=ids([2, 6, 9], [1, 5, 8])),
    Case("states off, fusion there", "aux-states-off", change=ids([2, 6, 9], [2, 6, 9], use_aux_hidden_state=False)),
    Case(
        "DFlash, a layer beyond",
        "layer-ids-out-of-range",
        head=lambda: dflash([1, 5, 12]),
        speculation={"method": "dflash"},
    ),
    Case("DFlash, two for three", "layer-ids-count", head=lambda: dflash([1, 5]), speculation={"method": "dflash"}),
    Case("layers side by side", "layer-ids-unusual", change=ids([1, 2, 3], [1, 2, 3])),
    # --- sizes
    Case("another width", "hidden-size", target={"hidden_size": 48}),
    Case("another vocabulary", "vocabulary-size", target={"vocab_size": 32000}),
    Case(
        "a draft model of another vocabulary",
        "vocabulary-size",
        head=whole_model,
        speculation={"method": "draft_model"},
        target={"vocab_size": VOCABULARY + 64},
    ),
    Case("a padded vocabulary", "vocabulary-padding", target={"vocab_size": VOCABULARY + 64}),
    Case("more drafted than known", "draft-vocabulary", change=config(draft_vocab_size=256)),
    Case("rows of the output layer", "draft-vocabulary", change=config(draft_vocab_size=60)),
    Case("no draft_vocab_size", "draft-vocabulary", change=without("draft_vocab_size")),
    Case("heads of another head", "head-count", change=config(num_attention_heads=8)),
    Case("groups that do not divide", "head-count", change=config(num_key_value_heads=3)),
    Case("groups of another head", "head-count", change=config(num_key_value_heads=4, head_dim=HIDDEN // 4)),
    Case("no output layer", "output-layer-missing", change=no_tensor("lm_head.weight")),
    # --- tables
    Case("no table", "d2t-missing", change=no_tensor("d2t")),
    Case("neither table", "d2t-missing", change=no_tensor("d2t", "t2d")),
    Case("a short table", "d2t-length", change=tensor("d2t", long_table(list(range(DRAFT_VOCABULARY - 1))))),
    Case("a table of zeros", "d2t-all-zero", change=tensor("d2t", long_table([0] * DRAFT_VOCABULARY))),
    Case(
        "ids for offsets",
        "d2t-out-of-range",
        change=tensor("d2t", long_table([2 * number for number in range(DRAFT_VOCABULARY)])),
    ),
    Case(
        "below the vocabulary",
        "d2t-out-of-range",
        change=tensor("d2t", long_table([-1, *range(1, DRAFT_VOCABULARY)])),
    ),
    Case("a mask of another mapping", "d2t-t2d-disagree", change=tensor("t2d", mask({1, 3, 5}))),
    Case("a mask of another vocabulary", "d2t-t2d-disagree", change=tensor("t2d", mask({0, 2}, size=100))),
    Case(
        "one target id twice",
        "d2t-t2d-disagree",
        change=tensor("d2t", long_table([0, -1, *range(2, DRAFT_VOCABULARY)])),
    ),
    Case(
        "a shuffled table",
        "d2t-unsorted",
        change=tensor("d2t", long_table([2, -1, *range(2, DRAFT_VOCABULARY)])),
    ),
    # --- files
    Case("no config", "draft-config-unusable", change=files(config__json=None)),
    Case("half a config", "draft-config-unusable", change=files(config__json=b'{"architectures": [')),
    Case("a list for a config", "draft-config-unusable", change=files(config__json=b"[]")),
    Case("no weights", "weights-absent", change=files(model__safetensors=None)),
    Case(
        "a shard of the index is missing",
        "weights-absent",
        change=lambda head: head.files.update({"model.safetensors.index.json": INDEX}),
    ),
    Case(
        "a Git LFS pointer",
        "weights-pointer",
        change=files(
            model__safetensors=b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 19732408\n"
        ),
    ),
    Case("no bytes", "weights-damaged", change=files(model__safetensors=b"")),
    Case("half downloaded", "weights-damaged", change=cut),
    Case("no header", "weights-damaged", change=files(model__safetensors=b"not a safetensors file")),
    Case("a header of noise", "weights-damaged", change=files(model__safetensors=b"\x08" + bytes(7) + b"{noise!}")),
    Case(
        "an unfinished download",
        "weights-damaged",
        change=lambda head: head.files.update({"model.safetensors": None, "model.safetensors.incomplete": b"x"}),
    ),
    Case(
        "a form that is not read",
        "weights-unread",
        change=lambda head: head.files.update({"model.safetensors": None, "model.gguf": b"GGUF"}),
    ),
    # --- weights
    Case("no fusion layer", "weights-incomplete", change=no_tensor("fc.weight")),
    Case("no attention", "weights-incomplete", change=no_tensor("midlayer.self_attn.k_proj.weight")),
    Case("no MLP", "weights-incomplete", change=no_tensor("midlayer.mlp.down_proj.weight")),
    Case("no norm", "weights-incomplete", change=no_tensor("norm.weight")),
    Case("no norm of the states", "weights-incomplete", change=no_tensor("midlayer.hidden_norm.weight")),
    Case("two layers promised", "layer-count", change=config(num_hidden_layers=2)),
    Case("a fusion layer of another width", "weights-shape", change=tensor("fc.weight", weight(HIDDEN, 100))),
    Case("an MLP of another width", "weights-shape", change=config(intermediate_size=96)),
    Case("an output layer of another width", "weights-shape", change=tensor("lm_head.weight", weight(64, 16))),
    Case(
        "an attention that reads one width", "weights-shape", change=lambda head: head.tensors.update(layer("midlayer"))
    ),
    Case(
        "NaN in a norm",
        "weights-not-finite",
        change=tensor("norm.weight", Values("BF16", (HIDDEN,), NAN * HIDDEN)),
    ),
    Case(
        "one NaN in the fusion layer",
        "weights-not-finite",
        change=tensor("fc.weight", Values("BF16", (HIDDEN, 3 * HIDDEN), bytes(6000) + NAN + bytes(142))),
    ),
    Case(
        "infinity in 32 bits",
        "weights-not-finite",
        change=tensor("norm.weight", Values("F32", (HIDDEN,), b"\x00\x00\x80\x7f" * HIDDEN)),
    ),
    Case(
        "a fusion layer of zeros",
        "weights-zero",
        change=tensor("fc.weight", Values("BF16", (HIDDEN, 3 * HIDDEN), bytes(6144))),
    ),
    # --- settings
    Case("no num_tokens", "num-tokens-missing", speculation={"num_tokens": 0}),
    Case(
        "not a multiple",
        "num-tokens-unfit",
        head=None,
        speculation={"method": "mtp", "num_tokens": 3},
        target={"num_nextn_predict_layers": 2},
    ),
    Case(
        "beyond the block",
        "num-tokens-beyond-block",
        change=config(architectures=["DFlashDraftModel"], block_size=2, dflash_config={}),
        speculation={"method": "dflash"},
    ),
    Case("min_p", "sampling-excludes-speculation", sampling={"min_p": 0.05}),
    Case(
        "min_p of the target's own",
        "sampling-excludes-speculation",
        target_files={"generation_config.json": b'{"min_p": 0.05}'},
    ),
    Case(
        "a logits processor",
        "sampling-excludes-speculation",
        options={"engine_args": {"logits_processors": ["a.B"]}},
    ),
    Case("a penalty", "sampling-changes-speculation", sampling={"repetition_penalty": 1.1}),
    Case("synthetic acceptance", "lossy-verification", speculation={"args": {"rejection_sample_method": "synthetic"}}),
    Case("typical acceptance", "lossy-verification", speculation={"args": {"posterior_threshold": 0.09}}),
    Case(
        "SGLang's threshold", "lossy-verification", speculation={"args": {"speculative_accept_threshold_single": 0.5}}
    ),
    Case(
        "a misspelt setting",
        "speculation-args-unknown",
        speculation={"args": {"draft_tp": 1}},
        options={"engine": replace(ENGINE, speculation_args=frozenset({"draft_tensor_parallel_size"}))},
    ),
    Case("a schedule with a hole at 1", "schedule-invalid", speculation={"args": {SCHEDULE: [[2, 8, 3]]}}),
    Case("a schedule that overlaps", "schedule-invalid", speculation={"args": {SCHEDULE: [[1, 8, 3], [8, 9, 1]]}}),
    Case("a schedule of pairs", "schedule-invalid", speculation={"args": {SCHEDULE: [[1, 3], [2, 1, 1]]}}),
    Case(
        "a schedule with data parallelism",
        "schedule-dropped",
        speculation={"args": {SCHEDULE: [[1, 8, 3]]}},
        options={"engine_args": {"data_parallel_size": 2}},
    ),
    Case(
        "inner states over pipeline stages",
        "states-over-stages",
        options={"engine_args": {"pipeline_parallel_size": 2}},
    ),
    Case(
        "n-gram bounds",
        "prompt-lookup",
        head=None,
        speculation={"method": "ngram", "args": {"prompt_lookup_min": 4, "prompt_lookup_max": 2}},
    ),
    Case("a longer run", "draft-positions", options={"max_model_len": 65536, "prompts": (1000, 400)}),
    Case(
        "three ranks of two",
        "draft-tensor-parallel",
        speculation={"args": {"draft_tensor_parallel_size": 2}},
        options={"engine_args": {"tensor_parallel_size": 4}},
    ),
    Case("heads that do not divide", "draft-tensor-parallel", options={"engine_args": {"tensor_parallel_size": 3}}),
    Case(
        "a draft model on one rank",
        "draft-tensor-parallel",
        head=whole_model,
        speculation={"method": "draft_model", "args": {"draft_tensor_parallel_size": 1}},
        options={"engine_args": {"tensor_parallel_size": 2}},
    ),
    Case(
        "another tokenizer",
        "tokenizer-mismatch",
        head=whole_model,
        change=files(tokenizer__json=tokenizer(shift=1)),
        speculation={"method": "draft_model"},
        target_files={"tokenizer.json": tokenizer()},
    ),
    Case(
        "half the tokenizer",
        "tokenizer-mismatch",
        head=whole_model,
        change=files(tokenizer__json=tokenizer(size=50)),
        speculation={"method": "draft_model"},
        target_files={"tokenizer.json": tokenizer()},
    ),
    Case(
        "a head with another tokenizer",
        "tokenizer-of-other-target",
        change=files(tokenizer__json=tokenizer(shift=1)),
        target_files={"tokenizer.json": tokenizer()},
    ),
    Case("more expected than drafted", "expected-unfit", speculation={"expected": {"by_position": [0.5] * 4}}),
    Case("expected to rise", "expected-unfit", speculation={"expected": {"by_position": [0.2, 0.5]}}),
    Case("gate against guard", "settings-contradict", speculation={"gate": "warn", "guard": "fail"}),
    Case(
        "layers for n-grams",
        "settings-contradict",
        head=None,
        speculation={"method": "ngram", "layer_convention": "output"},
    ),
    Case(
        "a convention for nothing",
        "settings-contradict",
        change=ids(),
        speculation={"layer_convention": "output"},
    ),
    Case("a misspelt code", "accept-unknown", speculation={"accept": ["metod-mismatch"]}),
    Case("a server's code without servers", "accept-unknown", speculation={"accept": ["rank-dead"]}),
]

HEALTHY = [
    Case(
        "a server's code is accepted",
        speculation={"accept": ["rank-dead"]},
        options={"served_codes": frozenset({"rank-dead"})},
    ),
    Case("EAGLE-3, LlamaForCausalLMEagle3"),
    Case("EAGLE-3, Eagle3LlamaForCausalLM", change=config(architectures=["Eagle3LlamaForCausalLM"])),
    Case("EAGLE-3 under an ordinary name", change=config(architectures=["LlamaForCausalLM"])),
    Case("EAGLE-3 with layers by number", change=with_layers_named_by_number),
    Case("EAGLE-3 of latent attention", change=latent_attention),
    Case("EAGLE-3 for a wider target", change=wide_target, target={"hidden_size": 64}),
    Case("layer ids in eagle_config only (SpecForge)", change=ids(None, [2, 6, 9])),
    Case("layer ids at the top only", change=both(without("eagle_config"))),
    Case("layer ids in another order", change=ids([9, 2, 6], [9, 2, 6])),
    Case("no layer ids at all", change=without("eagle_config", "eagle_aux_hidden_state_layer_ids")),
    Case("an empty list of layer ids", change=ids([], [])),
    Case("SpecForge's ids, and so said", change=ids(None, [1, 5, 8]), speculation={"layer_convention": "output"}),
    Case("the last layer's output", change=ids([2, 6, 12], [2, 6, 12])),
    Case(
        "four states",
        change=both(ids([2, 5, 7, 9], [2, 5, 7, 9]), tensor("fc.weight", weight(HIDDEN, 4 * HIDDEN))),
    ),
    Case(
        "no inner states, and no fusion layer",
        change=both(ids([], [], use_aux_hidden_state=False), no_tensor("fc.weight")),
        options={"engine": replace(ENGINE, target_feeds_eagle3=False)},
    ),
    Case("speculators", change=speculators),
    Case(
        "the whole vocabulary",
        change=both(
            without("draft_vocab_size"),
            no_tensor("d2t", "t2d"),
            tensor("lm_head.weight", weight(VOCABULARY, HIDDEN)),
        ),
    ),
    Case(
        "the whole vocabulary, with tables that say so",
        change=both(
            config(draft_vocab_size=VOCABULARY),
            tensor("d2t", long_table([0] * VOCABULARY)),
            tensor("t2d", mask(set(range(VOCABULARY)))),
            tensor("lm_head.weight", weight(VOCABULARY, HIDDEN)),
        ),
    ),
    Case(
        "draft_vocab_size null",
        change=both(
            config(draft_vocab_size=None), no_tensor("d2t", "t2d"), tensor("lm_head.weight", weight(VOCABULARY, HIDDEN))
        ),
    ),
    Case("no output layer", change=no_tensor("lm_head.weight")),
    Case("no t2d", change=no_tensor("t2d")),
    Case("its own embedding", change=tensor("embed_tokens.weight", weight(VOCABULARY, HIDDEN))),
    Case("a norm of 32 bits", change=tensor("norm.weight", Values("F32", (HIDDEN,)))),
    Case("a target that nests its config", target={"text_config": dict(TARGET), "hidden_size": 1, "vocab_size": 7}),
    Case("a padded vocabulary", target={"vocab_size": VOCABULARY + 64}),
    Case("EAGLE", head=eagle, speculation={"method": "eagle"}),
    Case(
        "EAGLE by its name",
        head=eagle,
        change=config(architectures=["EagleLlamaForCausalLM"]),
        speculation={"method": "eagle"},
    ),
    Case("DFlash", head=lambda: dflash([1, 5, 11]), speculation={"method": "dflash", "num_tokens": 15}),
    Case("DFlash without ids", head=lambda: dflash(None, 2 * HIDDEN), speculation={"method": "dflash"}),
    Case("a draft model", head=whole_model, speculation={"method": "draft_model"}),
    Case(
        "a draft model with the target's tokenizer",
        head=whole_model,
        change=files(tokenizer__json=tokenizer()),
        speculation={"method": "draft_model"},
        target_files={"tokenizer.json": tokenizer()},
    ),
    Case(
        "n-grams", head=None, speculation={"method": "ngram", "args": {"prompt_lookup_max": 4, "prompt_lookup_min": 2}}
    ),
    Case("suffixes", head=None, speculation={"method": "suffix"}),
    Case("prediction layers", head=None, target_head=mtp_target, speculation={"method": "mtp", "num_tokens": 1}),
    Case(
        "prediction layers, of which nothing but the config is here",
        head=None,
        target={"num_nextn_predict_layers": 1},
        speculation={"method": "mtp"},
    ),
    Case("prediction layers of their own checkpoint", head=mtp_target, speculation={"method": "mtp", "num_tokens": 2}),
    Case("one token", speculation={"num_tokens": 1}),
    Case("five tokens, temperature 1", speculation={"num_tokens": 5}, sampling={"temperature": 1.0}),
    Case("a schedule with zero", speculation={"args": {SCHEDULE: [[1, 8, 3], [9, 64, 0]]}}),
    Case("block verification", speculation={"args": {"rejection_sample_method": "block"}}),
    Case("min_p set to zero", sampling={"min_p": 0.0}, target_files={"generation_config.json": b'{"min_p": 0.05}'}),
    Case("split as the target", options={"engine_args": {"tensor_parallel_size": 2}}),
    Case(
        "an engine that is not installed here",
        options={"engine": replace(ENGINE, version=None, target_feeds_eagle3=None, draft_architectures=frozenset())},
    ),
    Case(
        "lossy, asked for by name",
        speculation={"args": {"rejection_sample_method": "synthetic"}, "accept": ["lossy-verification"]},
    ),
]


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: f"{case.code}: {case.name}")
def test_each_broken_draft_gives_its_code(case: Case, tmp_path: Path) -> None:
    found = {finding.code: finding for finding in case.judged(tmp_path)}
    assert case.code in found
    (check,) = [check for check in ALL_CHECKS if check.code == case.code]
    finding = found[case.code]
    assert (finding.severity, finding.why) == (check.severity, check.why)
    assert finding.found
    assert finding.fix


@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.name)
def test_no_whole_draft_is_refused(case: Case, tmp_path: Path) -> None:
    assert [str(finding) for finding in case.judged(tmp_path) if finding.severity is REFUSE] == []


def test_every_check_has_a_draft_that_it_catches() -> None:
    assert {case.code for case in BROKEN} == {check.code for check in ALL_CHECKS}


def test_a_whole_head_gives_no_findings(tmp_path: Path) -> None:
    assert Case("whole").judged(tmp_path) == []


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_the_verdict_is_the_same_under_every_folder_name(method: str, tmp_path: Path) -> None:
    target = Head(dict(TARGET), {}).write(tmp_path / "target")
    verdicts = [
        [finding.code for finding in judge(target, eagle3().write(tmp_path / name), {"method": method}, {})]
        for name in ("eagle-heads/kimi-eagle3", "kimi-draft", "kimi-eagle3")
    ]
    assert verdicts == [["method-mismatch"] if method == "eagle" else []] * 3


def test_the_founding_fault_names_both_values(tmp_path: Path) -> None:
    (finding,) = Case("founding", speculation={"method": "eagle"}).judged(tmp_path)
    assert "'eagle'" in finding.found
    assert "LlamaForCausalLMEagle3" in finding.found
    assert "'eagle3'" in finding.fix


def test_the_fusion_layer_and_the_layers_that_would_be_taken_are_named(tmp_path: Path) -> None:
    case = Case("four states", change=both(ids(), tensor("fc.weight", weight(HIDDEN, 4 * HIDDEN))))
    found = {finding.code: finding.found for finding in case.judged(tmp_path)}
    assert "(2, 6, 9)" in found["layer-ids-missing"]
    assert "128 = 4 x 32" in found["layer-ids-count"]


def test_positions_say_how_many_planned_prompts_are_beyond(tmp_path: Path) -> None:
    case = Case("long", options={"max_model_len": 65536, "prompts": (1000, 400)})
    (finding,) = case.judged(tmp_path)
    assert "4,096 positions" in finding.found
    assert "65,536" in finding.found
    assert "400 of 1,000 planned prompts (40.0 %)" in finding.found


def test_what_is_accepted_by_name_warns_and_refuses_no_more(tmp_path: Path) -> None:
    case = Case("forced", speculation={"method": "eagle", "accept": ["method-mismatch"]})
    (finding,) = case.judged(tmp_path)
    assert (finding.code, finding.severity) == ("method-mismatch", WARN)


def test_findings_as_json_keep_their_keys(tmp_path: Path) -> None:
    (finding,) = Case("founding", speculation={"method": "eagle"}).judged(tmp_path)
    assert list(finding.to_json()) == ["code", "severity", "found", "why", "fix"]
    assert json.loads(json.dumps(finding.to_json()))["severity"] == "refuse"


@pytest.mark.skipif(not REAL_HEAD.exists(), reason="needs ../shared/data")
def test_the_trained_head_passes_and_as_eagle_it_does_not(tmp_path: Path) -> None:
    smollm2 = {"hidden_size": 576, "num_hidden_layers": 30, "vocab_size": 49152, "max_position_embeddings": 8192}
    target = Head({**TARGET, **smollm2}, {}).write(tmp_path / "target")
    assert judge(target, REAL_HEAD, {}, {}, max_model_len=8192) == []
    assert [finding.code for finding in judge(target, REAL_HEAD, {"method": "eagle"}, {})] == ["method-mismatch"]


def test_codes_are_unique_and_the_page_is_current(repository: Path) -> None:
    codes = [check.code for check in ALL_CHECKS]
    assert len(set(codes)) == len(codes)
    assert (repository / "docs" / "preflight.md").read_text(encoding="utf-8") == page(), (
        "python -m regen.speculative.page > docs/preflight.md"
    )
