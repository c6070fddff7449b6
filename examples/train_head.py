"""Trains a one-layer EAGLE-3 head on rows that regen regenerated: `python examples/train_head.py RUN OUT`.

Reads the sealed shards of RUN (`regen seal RUN` writes them in the middle of a run), prompt and completion ids as the
engine saw and sampled them, and writes OUT as a checkpoint that `regen preflight` passes and vLLM loads. It needs
PyTorch, transformers and pyarrow, all of which come with regen and its engine, and no GPU: ten minutes on two cores are
enough for a target of 135M parameters. It is an example to read and to change; for a large target of another family
than Llama use a trainer made for it.

What it does, in the order of the file:

1. Answers: one sequence per generation of the target, prompt and completion. Rows that are degenerate, rejected or
   failed are left out. At most `--tokens` are taken.
2. The draft's vocabulary: the commonest tokens of the answers. `d2t` and `t2d` say which ones.
3. The target's states: what enters three of its layers, computed once and kept in a temporary file beside OUT (3 x
   hidden size x 2 bytes per token: 1 GB for 300,000 tokens of width 576). Memory holds one answer at a time.
4. The head, computed as vLLM's `llama_eagle3.py` computes it. At slot q it reads the target's states of token q and the
   embedding of token q + 1, and proposes token q + 2. From the second token of a draft on it reads its own output in
   place of the target's states; that is unrolled here for `--depth` steps. The loss is on what would be drafted:
   generated tokens but the first, which comes from the prompt's own pass.
5. The checkpoint.

The same rows, seed and `--steps` give the same head on the same machine. With `--minutes` the clock decides how far it
gets. The share of drafts that would be accepted is printed for answers held out of training; `regen evaluate` measures.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEFT_OUT = ("degenerate", "rejected", "failed")
SAY_SECONDS = 30.0
WARMUP_SHARE = 0.05
DEEPER_WEIGHT = 0.8  # of each further drafted token's loss: it is asked for only if all before it were right
IGNORED = -100
# Lengths are rounded up to this: each new one costs a CPU's matrix library compiled kernels, and their memory.
ROUND = 64

Weights = dict[str, Any]  # tensors, by the names they have in the checkpoint


@dataclass(frozen=True)
class Answer:
    """One generation: all its ids, and how many of them were the prompt. `start` is its place in the states' file."""

    token_ids: tuple[int, ...]
    prompt_tokens: int
    start: int = 0


def main() -> None:
    """Parse, and go through the five parts."""
    options = parse()
    import torch

    torch.manual_seed(options.seed)
    answers = list(within(read_answers(options.run), options.tokens, options.longest))
    if len(answers) <= options.held_out:
        sys.exit(f"{options.run}: {len(answers)} answers, and {options.held_out} are to be held out: not enough")
    say(f"{len(answers):,} answers, {sum(len(answer.token_ids) for answer in answers):,} tokens")
    target = Target(options.run, options.layers)
    reached = draft_vocabulary(answers, options.draft_vocabulary, target.vocabulary)
    say(f"draft vocabulary: {len(reached):,} of {target.vocabulary:,}, {covered(answers, reached):.1%} of answers")
    with tempfile.TemporaryDirectory(prefix="states-", dir=options.out.parent) as scratch:
        states = target.states(answers, Path(scratch) / "states")
        head = Head(target, reached)
        train(head, states, answers, options)
        write(head, Path(scratch) / "head")
        (Path(scratch) / "head").rename(options.out)
    say(f"{options.out}: ready")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Trains an EAGLE-3 head on the rows of a run.")
    parser.add_argument("run", type=Path, help="a run folder with sealed shards")
    parser.add_argument("out", type=Path, help="where the head's folder is made; must not exist")
    parser.add_argument("--minutes", type=float, default=10, help="training time, after the states are computed")
    parser.add_argument("--steps", type=int, help="so many steps instead: repeatable")
    parser.add_argument("--layers", type=int, nargs=3, help="layers whose inputs are read; default 2, N/2, N-3")
    parser.add_argument("--depth", type=int, default=2, help="draft tokens unrolled")
    parser.add_argument("--draft-vocabulary", type=int, default=8192, help="tokens that the head can propose")
    parser.add_argument("--tokens", type=int, default=300_000, help="take so many tokens of the run at most")
    parser.add_argument("--longest", type=int, default=2048, help="leave out answers longer than this, with prompt")
    parser.add_argument("--held-out", type=int, default=16, help="answers that are not trained on, to look at")
    parser.add_argument("--batch", type=int, default=4, help="answers per step")
    parser.add_argument("--rate", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.out.exists():
        sys.exit(f"{options.out} exists: nothing is overwritten")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    return options


def say(text: str) -> None:
    """A line of progress."""
    print(text, flush=True)


# --- 1. answers ----------------------------------------------------------------------------------


def read_answers(run: Path) -> Iterator[Answer]:
    """Every generation of the target in the sealed shards, a few rows in memory."""
    import pyarrow.parquet as pq

    shards = sorted((run / "shards").glob("*.parquet"))
    if not shards:
        sys.exit(f"{run}/shards holds no shard: `regen seal {run}` writes what is complete")
    for shard in shards:
        for batch in pq.ParquetFile(shard).iter_batches(64, columns=["status", "generations"]):
            for row in batch.to_pylist():
                if row["status"] not in LEFT_OUT:
                    yield from answers_of(row["generations"])


def answers_of(generations: Iterable[Mapping[str, Any]]) -> Iterator[Answer]:
    """What the target itself has sampled, and was not stopped for looping."""
    for made in generations:
        if made["origin"] == "target" and made["finish_reason"] != "repetition" and made["loss_mask"] is None:
            prompt, completion = made["prompt_token_ids"], made["completion_token_ids"]
            yield Answer((*prompt, *completion), len(prompt))


def within(answers: Iterable[Answer], tokens: int, longest: int) -> Iterator[Answer]:
    """The first answers that fit into `tokens` together, each with its place among them."""
    taken = 0
    for answer in answers:
        size = len(answer.token_ids)
        if size > longest or size < 3:
            continue
        if taken + size > tokens:
            return
        yield Answer(answer.token_ids, answer.prompt_tokens, taken)
        taken += size


# --- 2. the draft's vocabulary -------------------------------------------------------------------


def draft_vocabulary(answers: Iterable[Answer], size: int, vocabulary: int) -> list[int]:
    """The commonest generated tokens, ascending; filled up with the lowest ids that no answer has."""
    if size >= vocabulary:
        return list(range(vocabulary))
    counts = Counter(token for answer in answers for token in answer.token_ids[answer.prompt_tokens :])
    commonest = sorted(counts, key=lambda token: (-counts[token], token))[:size]
    chosen = set(commonest)
    others = (token for token in range(vocabulary) if token not in chosen)
    return sorted(chosen.union(token for token, _ in zip(others, range(size - len(chosen)), strict=False)))


def vocabulary_tables(reached: Sequence[int], vocabulary: int) -> tuple[list[int], list[bool]]:
    """(`d2t`, `t2d`): draft id n means target id n + d2t[n]; t2d says of each target id whether it can be drafted."""
    can_be_drafted = [False] * vocabulary
    for token in reached:
        can_be_drafted[token] = True
    return [token - number for number, token in enumerate(reached)], can_be_drafted


def covered(answers: Iterable[Answer], reached: Sequence[int]) -> float:
    """The share of generated tokens that can be drafted at all."""
    chosen, hits, total = set(reached), 0, 0
    for answer in answers:
        generated = answer.token_ids[answer.prompt_tokens :]
        hits, total = hits + sum(token in chosen for token in generated), total + len(generated)
    return hits / max(1, total)


# --- what is asked of the head: labels and attention, per drafted token ---------------------------


def labels(answer: Answer, depth: int, draft_id: Mapping[int, int]) -> list[int]:
    """Per slot, what the draft token `depth` (from 0) should be, as draft id; IGNORED where nothing would be drafted.

    A draft begins at the slot of the last prompt token at the earliest, since the token after it is sampled by then.
    """
    first = answer.prompt_tokens + 1 + depth
    tokens = answer.token_ids
    return [draft_id.get(tokens[at], IGNORED) if at >= first else IGNORED for at in range(2, len(tokens))]


def rounded(count: int) -> int:
    """The next multiple of ROUND. What is added stands behind all else, where nothing attends to it."""
    return -(-count // ROUND) * ROUND


def may_attend(slots: int, depth: int) -> Any:
    """Row: the slot that asks; columns: slots of depth 0, then of depth 1 and so on up to `depth`. A tensor of bool.

    A draft that is at slot q at its depth d began at slot q - d: it sees the target's slots up to there, and of each
    depth after that its own one slot.
    """
    import torch

    began, other = torch.arange(slots)[:, None] - depth, torch.arange(slots)[None]
    return torch.cat([other <= began, *(other == began + deeper for deeper in range(1, depth + 1))], dim=1)


def pace(progress: float) -> float:
    """The learning rate as a share of its peak: a short rise, then a straight fall to a twentieth."""
    if progress < WARMUP_SHARE:
        return (progress + 1e-3) / (WARMUP_SHARE + 1e-3)
    return max(0.05, 1.0 - (progress - WARMUP_SHARE) / (1.0 - WARMUP_SHARE))


# --- 3. the target's states ----------------------------------------------------------------------


class Target:
    """The target with its weights frozen; its folder (or hub name and commit) as the run recorded it."""

    def __init__(self, run: Path, layers: Sequence[int] | None) -> None:
        from transformers import AutoModelForCausalLM, PretrainedConfig

        record = json.loads((run / "run.json").read_text(encoding="utf-8"))
        name, commit = record["spec"]["target"]["model"], record["shaping"]["target.commit"]
        revision = None if commit.startswith("local:") else commit
        self.config: dict[str, Any] = PretrainedConfig.get_config_dict(name, revision=revision)[0]  # as it is written
        self.model: Any = AutoModelForCausalLM.from_pretrained(name, revision=revision, dtype="auto").eval()
        self.model.requires_grad_(False)
        read = self.model.config  # with defaults filled in
        self.layers = list(layers or (2, read.num_hidden_layers // 2, read.num_hidden_layers - 3))
        self.vocabulary, self.hidden_size = int(read.vocab_size), int(read.hidden_size)

    def states(self, answers: Sequence[Answer], path: Path) -> Any:
        """What enters the layers, side by side, per token of all answers: a tensor that lies in the file `path`."""
        import torch

        tokens, width = sum(len(answer.token_ids) for answer in answers), 3 * self.hidden_size
        states = torch.from_file(str(path), shared=True, size=tokens * width, dtype=torch.bfloat16).view(tokens, width)
        said_at = time.monotonic()
        for answer in answers:
            with torch.inference_mode():
                size = len(answer.token_ids)
                ids = torch.zeros(1, rounded(size), dtype=torch.long)
                ids[0, :size] = torch.tensor(answer.token_ids)
                entering = self.model.model(ids, output_hidden_states=True, use_cache=False).hidden_states
                found = torch.cat([entering[layer][0, :size] for layer in self.layers], dim=-1)
            states[answer.start : answer.start + size] = found.to(torch.bfloat16)
            if time.monotonic() - said_at > SAY_SECONDS:
                said_at = time.monotonic()
                say(f"states of the target: {(answer.start + len(answer.token_ids)) / tokens:.0%}")
        return states


# --- 4. the head ---------------------------------------------------------------------------------


class Head:
    """Weights by checkpoint name, and the forward pass as vLLM's `llama_eagle3.py` has it."""

    def __init__(self, target: Target, reached: Sequence[int]) -> None:
        self.target = target
        self.reached = list(reached)
        self.draft_id = {token: number for number, token in enumerate(reached)}
        read = target.model.config
        self.heads, self.groups, self.epsilon = read.num_attention_heads, read.num_key_value_heads, read.rms_norm_eps
        self.embedding = target.model.get_input_embeddings().weight.float()
        self.weights = initial_weights(target, reached)

    def propose(self, states: Any, tokens: Any, depths: int) -> Iterator[Any]:
        """Per depth, what is left of each slot before the output layer: [slots, hidden]."""
        import torch

        w = self.weights
        slots = len(tokens) - 2
        hidden = states[:slots].float() @ w["fc.weight"].T
        embedded = self._norm(self.embedding[tokens[1:-1]], "midlayer.input_layernorm.weight")
        rotation = self.target.model.model.rotary_emb(embedded[None], torch.arange(slots)[None])
        keys: list[Any] = []
        values: list[Any] = []
        for depth in range(depths):
            residual = hidden
            both = torch.cat([embedded, self._norm(hidden, "midlayer.hidden_norm.weight")], dim=-1)
            allowed = may_attend(slots, depth)
            residual = residual + self._attend(both, rotation, allowed, keys, values)
            inner = self._norm(residual, "midlayer.post_attention_layernorm.weight")
            gate = torch.nn.functional.silu(inner @ w["midlayer.mlp.gate_proj.weight"].T)
            up = inner @ w["midlayer.mlp.up_proj.weight"].T
            output = residual + (gate * up) @ w["midlayer.mlp.down_proj.weight"].T
            yield self._norm(output, "norm.weight")
            hidden = output.roll(1, dims=0)  # the next token is drafted one slot on

    def _norm(self, values: Any, name: str) -> Any:
        scale = (values.pow(2).mean(-1, keepdim=True) + self.epsilon).rsqrt()
        return values * scale * self.weights[name]

    def _attend(self, both: Any, rotation: tuple[Any, Any], allowed: Any, keys: list[Any], values: list[Any]) -> Any:
        """Attention over the slots of all depths so far; adds this depth's keys and values to the lists."""
        import torch

        def split(name: str, heads: int) -> Any:
            return (
                (both @ self.weights[f"midlayer.self_attn.{name}.weight"].T).view(len(both), heads, -1).transpose(0, 1)
            )

        keys.append(rotated(split("k_proj", self.groups), rotation))
        values.append(split("v_proj", self.groups))
        seen = torch.nn.functional.scaled_dot_product_attention(
            rotated(split("q_proj", self.heads), rotation)[None],
            torch.cat(keys, dim=1)[None],
            torch.cat(values, dim=1)[None],
            attn_mask=allowed,
            enable_gqa=True,
        )
        return seen[0].transpose(0, 1).flatten(1) @ self.weights["midlayer.self_attn.o_proj.weight"].T


def rotated(heads: Any, rotation: tuple[Any, Any]) -> Any:
    """Llama's rotary embedding: the two halves of a head belong together."""
    import torch

    cos, sin = rotation
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat([-second, first], dim=-1) * sin


def initial_weights(target: Target, reached: Sequence[int]) -> Weights:
    """The target's own last layer, norm and output rows; what is new reads the deepest states, and little else."""
    import torch

    hidden, last = target.hidden_size, target.model.model.layers[-1]

    def small(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns) * 0.01

    weights: Weights = {
        "fc.weight": torch.cat([small(hidden, 2 * hidden), torch.eye(hidden)], dim=1),
        "midlayer.input_layernorm.weight": torch.ones(hidden),
        "midlayer.hidden_norm.weight": last.input_layernorm.weight,
        "midlayer.post_attention_layernorm.weight": last.post_attention_layernorm.weight,
        "midlayer.self_attn.o_proj.weight": last.self_attn.o_proj.weight,
        "norm.weight": target.model.model.norm.weight,
        "lm_head.weight": target.model.get_output_embeddings().weight[list(reached)],
    }
    for name in ("q_proj", "k_proj", "v_proj"):
        own = getattr(last.self_attn, name).weight
        weights[f"midlayer.self_attn.{name}.weight"] = torch.cat([small(len(own), hidden), own.float()], dim=1)
    for name in ("gate_proj", "up_proj", "down_proj"):
        weights[f"midlayer.mlp.{name}.weight"] = getattr(last.mlp, name).weight
    return {name: value.float().clone().requires_grad_() for name, value in weights.items()}


def train(head: Head, states: Any, answers: Sequence[Answer], options: argparse.Namespace) -> None:
    """Until the minutes or the steps are over."""
    import torch

    held_out, trained_on = answers[: options.held_out], list(answers[options.held_out :])
    parameters = list(head.weights.values())
    optimizer = torch.optim.AdamW(parameters, lr=options.rate, betas=(0.9, 0.95), weight_decay=0.0)
    order = shuffled(trained_on, options.seed)
    begun_at = said_at = time.monotonic()
    step, progress, loss_sum, loss_steps = 0, 0.0, 0.0, 0
    while progress < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = options.rate * pace(progress)
        loss_sum, loss_steps = loss_sum + learn(head, states, order, options, optimizer, parameters), loss_steps + 1
        step += 1
        spent = time.monotonic() - begun_at
        progress = step / options.steps if options.steps else spent / (60 * options.minutes)
        if time.monotonic() - said_at > SAY_SECONDS or progress >= 1.0:
            right = ", ".join(f"{share:.2f}" for share in accepted(head, states, held_out, options.depth))
            say(
                f"step {step:,} ({min(1, progress):.0%}): loss {loss_sum / loss_steps:.3f}; held out, accepted: {right}"
            )
            loss_sum, loss_steps, said_at = 0.0, 0, time.monotonic()


def learn(
    head: Head,
    states: Any,
    order: Iterator[Answer],
    options: argparse.Namespace,
    optimizer: Any,
    parameters: Sequence[Any],
) -> float:
    """One step over `--batch` answers; the loss of its first drafted token, per token."""
    import torch

    optimizer.zero_grad()
    first = 0.0
    for _ in range(options.batch):
        losses = loss_by_depth(head, states, next(order), options.depth)
        sum(loss * DEEPER_WEIGHT**depth / options.batch for depth, loss in enumerate(losses)).backward()
        first += float(losses[0].detach()) / options.batch
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    return first


def loss_by_depth(head: Head, states: Any, answer: Answer, depths: int) -> list[Any]:
    """Cross entropy with what the target said, over the slots where something would be drafted."""
    import torch

    losses = []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for depth, output in enumerate(head.propose(*inputs(states, answer), depths)):
            wanted = wanted_ids(answer, depth, head.draft_id, len(output))
            logits = (output @ head.weights["lm_head.weight"].T).float()
            loss = torch.nn.functional.cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="sum")
            losses.append(loss / max(1, int((wanted != IGNORED).sum())))
    return losses


def accepted(head: Head, states: Any, answers: Iterable[Answer], depths: int) -> list[float]:
    """The share of drafts whose first, first two, ... tokens are what the target said, tokens out of reach included."""
    import torch

    hits, drafts = [0] * depths, 0
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for answer in answers:
            right: Any = None
            for depth, output in enumerate(head.propose(*inputs(states, answer), depths)):
                best = (output @ head.weights["lm_head.weight"].T).argmax(-1)
                this = best == wanted_ids(answer, depth, head.draft_id, len(best))
                right = this if right is None else this & right.roll(1)
                hits[depth] += int(right.sum())
            drafts += max(0, len(answer.token_ids) - answer.prompt_tokens - 1)
    return [count / max(1, drafts) for count in hits]


def inputs(states: Any, answer: Answer) -> tuple[Any, Any]:
    """(states, token ids) of one answer, filled up so that the number of slots, two less, is a round one."""
    import torch

    size = len(answer.token_ids)
    fill = rounded(size - 2) + 2 - size
    own = states[answer.start : answer.start + size]
    return torch.cat([own, own.new_zeros(fill, own.shape[1])]), torch.tensor([*answer.token_ids, *[0] * fill])


def wanted_ids(answer: Answer, depth: int, draft_id: Mapping[int, int], slots: int) -> Any:
    """`labels` as a tensor over so many slots."""
    import torch

    wanted = labels(answer, depth, draft_id)
    return torch.tensor([*wanted, *[IGNORED] * (slots - len(wanted))])


def shuffled(answers: Sequence[Answer], seed: int) -> Iterator[Answer]:
    """All answers in a new order, again and again."""
    draw, order = random.Random(seed), list(answers)
    while True:
        draw.shuffle(order)
        yield from order


# --- 5. the checkpoint ---------------------------------------------------------------------------


def head_config(target: Mapping[str, Any], layers: Sequence[int], draft_vocabulary: int) -> dict[str, Any]:
    """The target's own config where the head is built alike; the layers where each of vLLM's runners reads them."""
    kept = {key: value for key, value in target.items() if not key.startswith("_") and key != "layer_types"}
    return {
        **kept,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "draft_vocab_size": draft_vocabulary,
        "eagle_aux_hidden_state_layer_ids": list(layers),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(layers), "use_aux_hidden_state": True},
    }


def write(head: Head, folder: Path) -> None:
    """config.json and model.safetensors; tables only where the draft's vocabulary is a smaller one."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    target = head.target
    config = head_config(target.config, target.layers, len(head.reached))
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    tensors = {name: value.detach().to(torch.bfloat16).contiguous() for name, value in head.weights.items()}
    if len(head.reached) < target.vocabulary:
        offsets, can_be_drafted = vocabulary_tables(head.reached, target.vocabulary)
        tensors["d2t"], tensors["t2d"] = torch.tensor(offsets), torch.tensor(can_be_drafted)
    try:
        save_file(tensors, str(folder / "model.safetensors"))
    except BaseException:
        shutil.rmtree(folder)
        raise


if __name__ == "__main__":
    main()
