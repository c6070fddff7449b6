"""A whole Kimi-K2.5, tiny and random, and random EAGLE-3 heads for it: real weights that vLLM's CPU engine takes.

The architecture is Kimi-K2.5's own, `KimiK25ForConditionalGeneration` around DeepSeek-V3's text model (latent
attention, routed experts) and a vision tower; what is small are the sizes. Latent attention on a CPU wants heads of
576: the rank of 512 and 64 rotary ones. It says random words. 4 MB on disk, built in a second.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from tests.heads import Values, long_table, mask, write_safetensors
from tests.kimi_chat import BOS_ID, EOS_ID, MEDIA_ID, PAD_ID, VOCABULARY, write_json, write_kimi_chat
from tests.real_heads import random_values

HIDDEN, LAYERS, HEADS, EXPERTS = 128, 8, 2, 4
INNER, EXPERT_INNER, QUERY_RANK, RANK, ROTARY, PLAIN = 256, 64, 64, 512, 64, 128
CONTEXT_TOKENS, DRAFT_VOCABULARY = 8192, 128
AUXILIARY_LAYERS = [2, 4, 5]
TEXT_CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": PAD_ID,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "kv_lora_rank": RANK,
    "max_position_embeddings": CONTEXT_TOKENS,
    "moe_intermediate_size": EXPERT_INNER,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": HEADS,
    "num_experts_per_tok": 2,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": HEADS,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": QUERY_RANK,
    "qk_nope_head_dim": PLAIN,
    "qk_rope_head_dim": ROTARY,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50_000.0,
    "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": PLAIN,
    "vocab_size": VOCABULARY,
}
CONFIG: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": PAD_ID,
    "image_token_id": MEDIA_ID,
    "media_placeholder_token_id": MEDIA_ID,
    "dtype": "bfloat16",
    "tie_word_embeddings": False,
    "text_config": TEXT_CONFIG,
    "vision_config": {
        "model_type": "kimi_k25_vision",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "merge_kernel_size": [2, 2],
        "patch_size": 14,
        "pos_emb_height": 8,
        "pos_emb_width": 8,
        "pos_emb_time": 4,
    },
}
IMAGES: dict[str, Any] = {
    "media_proc_cfg": {
        "in_patch_limit": 64,
        "in_patch_limit_each_frame": 64,
        "in_patch_limit_video": None,
        "patch_limit_on_one_side": 8,
        "patch_size": 14,
        "merge_kernel_size": 2,
        "temporal_merge_kernel_size": 4,
        "sample_fps": 2.0,
        "fixed_output_tokens": None,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
}


HEAD_CONFIG: dict[str, Any] = {
    **TEXT_CONFIG,
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "num_hidden_layers": 1,
    "dtype": "bfloat16",
    "draft_vocab_size": DRAFT_VOCABULARY,
    "eagle_aux_hidden_state_layer_ids": AUXILIARY_LAYERS,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": AUXILIARY_LAYERS, "use_aux_hidden_state": True},
}


def build_tiny_kimi(folder: Path) -> Path:
    """The target: `folder` is made."""
    write_kimi_chat(folder)
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "preprocessor_config.json", IMAGES)
    write_safetensors(folder / "model.safetensors", _drawn(_text_shapes() | _vision_shapes()))
    return folder


def build_tiny_head(folder: Path, **config: Any) -> Path:
    """A random EAGLE-3 head of the right shapes: nothing of it is accepted, and no file tells.

    With latent attention, as the target: vLLM's CPU engine has no size of blocks that suits both that and plain
    attention, so a head in Llama's form, which GPUs run, ends its start.
    """
    shapes = {
        "fc.weight": (HIDDEN, 3 * HIDDEN),
        **{f"midlayer.{name}": shape for name, shape in _layer(is_dense=True, width=2 * HIDDEN).items()},
        "midlayer.hidden_norm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (DRAFT_VOCABULARY, HIDDEN),
    }
    tables = {
        "d2t": long_table(list(range(DRAFT_VOCABULARY))),
        "t2d": mask({2 * number for number in range(DRAFT_VOCABULARY)}, VOCABULARY),
    }
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {**HEAD_CONFIG, **config})
    write_safetensors(folder / "model.safetensors", _drawn(shapes) | tables)
    return folder


def _text_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCABULARY, HIDDEN),
    }
    for number in range(LAYERS):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in _layer(is_dense=not number).items()}
    return {f"language_model.{name}": shape for name, shape in shapes.items()}


def _layer(is_dense: bool, width: int = HIDDEN) -> dict[str, tuple[int, ...]]:
    if is_dense:
        mlp = _mlp("mlp", INNER)
    else:
        mlp = {"mlp.gate.weight": (EXPERTS, HIDDEN), "mlp.gate.e_score_correction_bias": (EXPERTS,)}
        for expert in ("shared_experts", *(f"experts.{number}" for number in range(EXPERTS))):
            mlp |= _mlp(f"mlp.{expert}", EXPERT_INNER)
    return {
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
        "self_attn.q_a_proj.weight": (QUERY_RANK, width),
        "self_attn.q_a_layernorm.weight": (QUERY_RANK,),
        "self_attn.q_b_proj.weight": (HEADS * (PLAIN + ROTARY), QUERY_RANK),
        "self_attn.kv_a_proj_with_mqa.weight": (RANK + ROTARY, width),
        "self_attn.kv_a_layernorm.weight": (RANK,),
        "self_attn.kv_b_proj.weight": (HEADS * 2 * PLAIN, RANK),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * PLAIN),
        **mlp,
    }


def _mlp(prefix: str, inner: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj.weight": (inner, HIDDEN),
        f"{prefix}.up_proj.weight": (inner, HIDDEN),
        f"{prefix}.down_proj.weight": (HIDDEN, inner),
    }


def _vision_shapes() -> dict[str, tuple[int, ...]]:
    """The tower that images would go through. vLLM does not start without it."""
    said = CONFIG["vision_config"]
    width, inner, patch = said["hidden_size"], said["intermediate_size"], said["patch_size"]
    merged = 4 * width
    return {
        "vision_tower.patch_embed.pos_emb.weight": (said["pos_emb_height"], said["pos_emb_width"], width),
        **_biased("vision_tower.patch_embed.proj", width, 3, patch, patch),
        **_biased("vision_tower.encoder.blocks.0.norm0", width),
        **_biased("vision_tower.encoder.blocks.0.norm1", width),
        **_biased("vision_tower.encoder.blocks.0.wqkv", 3 * width, width),
        **_biased("vision_tower.encoder.blocks.0.wo", width, width),
        **_biased("vision_tower.encoder.blocks.0.mlp.fc0", inner, width),
        **_biased("vision_tower.encoder.blocks.0.mlp.fc1", width, inner),
        **_biased("vision_tower.encoder.final_layernorm", width),
        **_biased("mm_projector.pre_norm", width),
        **_biased("mm_projector.proj.0", merged, merged),
        **_biased("mm_projector.proj.2", HIDDEN, merged),
    }


def _biased(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def _drawn(shapes: dict[str, tuple[int, ...]]) -> dict[str, Values]:
    """Norms are ones: with less, every layer says next to nothing."""
    draw = random.Random(1)
    return {
        name: Values("BF16", shape, b"\x80\x3f" * math.prod(shape))
        if name.endswith("norm.weight") or "norm0" in name or "norm1" in name
        else random_values(shape, draw)
        for name, shape in shapes.items()
    }
