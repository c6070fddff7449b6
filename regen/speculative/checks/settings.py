"""What the spec asks for: sampling, lengths, parallelism, the engine's own speculation settings, and one another."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from regen.spec import LOSSY_SPECULATION_ARGS, SCHEDULE_ARG
from regen.speculative.checks.subject import draft_of, head_of
from regen.speculative.draft import Draft, Family, mtp_layers, whole
from regen.speculative.evidence import Evidence, Fault

_LAYERED = (Family.EAGLE3, Family.DFLASH)


def sampling_excludes(evidence: Evidence) -> Fault | None:
    method = evidence.method
    min_p = evidence.sampling.min_p
    if min_p is None:
        min_p = float(evidence.target.generation_config.get("min_p") or 0.0)
    if min_p != 0.0 and "min_p" in evidence.engine.refused_sampling:
        return Fault(
            f"sampling.min_p is {min_p} and speculation is on ({method!r})",
            "Set sampling.min_p to 0, or leave the speculation section out.",
        )
    if evidence.engine_args.get("logits_processors"):
        return Fault(
            f"engine.args.logits_processors is set and speculation is on ({method!r})",
            "Leave engine.args.logits_processors out, or the speculation section.",
        )
    return None


def sampling_changes(evidence: Evidence) -> Fault | None:
    said = list(_changing(evidence))
    if not said:
        return None
    return Fault(
        f"{', '.join(said)}, with speculation on",
        "Nothing to do; acceptance figures from a greedy benchmark do not carry over.",
    )


def _changing(evidence: Evidence) -> Iterator[str]:
    defaults = evidence.target.generation_config
    for name, neutral in (("presence_penalty", 0.0), ("frequency_penalty", 0.0), ("repetition_penalty", 1.0)):
        given = getattr(evidence.sampling, name)
        value = defaults.get(name, neutral) if given is None else given
        if isinstance(value, int | float) and value != neutral:
            yield f"sampling.{name} is {value}"


def lossy(evidence: Evidence) -> Fault | None:
    args = evidence.speculation.args
    for name, keeps in LOSSY_SPECULATION_ARGS.items():
        if name in args and args[name] not in keeps:
            return Fault(
                f"speculation.args.{name} is {args[name]!r}: drafts are accepted that the target would not sample",
                "Leave it out. If such rows are wanted, add 'lossy-verification' to speculation.accept.",
            )
    return None


def args_unknown(evidence: Evidence) -> Fault | None:
    known = evidence.engine.speculation_args
    unknown = sorted(set(evidence.speculation.args) - known) if known else []
    if not unknown:
        return None
    return Fault(
        f"speculation.args.{unknown[0]} is nothing that {evidence.engine.engine} {evidence.engine.version or ''} knows",
        "Correct its name, or leave it out.",
    )


def num_tokens_missing(evidence: Evidence) -> Fault | None:
    if evidence.speculation.num_tokens >= 1:
        return None
    suggested = _suggested_tokens(evidence)
    hint = f" The draft's own config suggests {suggested}." if suggested else ""
    return Fault(
        f"speculation.num_tokens is {evidence.speculation.num_tokens or 'missing'} (method {evidence.method!r})",
        f"Set it to how many tokens are drafted per verification step, for example 3.{hint}",
    )


def _suggested_tokens(evidence: Evidence) -> int | None:
    draft = draft_of(evidence)
    if draft is None:
        return mtp_layers(evidence.target.config or {})
    said = draft.raw.get("speculators_config")
    methods = said.get("proposal_methods") if isinstance(said, dict) else None
    first = methods[0] if isinstance(methods, list) and methods else None
    return whole(first, "speculative_tokens") if isinstance(first, dict) else None


def num_tokens_unfit(evidence: Evidence) -> Fault | None:
    asked = evidence.speculation.num_tokens
    if evidence.method == Family.MTP:
        source = evidence.target if evidence.draft is None else evidence.draft
        layers = mtp_layers(source.config or {}) or 0
        if 0 < layers < asked and asked % layers:
            return Fault(
                f"speculation.num_tokens is {asked}, and there are {layers} prediction layers",
                f"Set it to a multiple of {layers}: vLLM refuses anything else.",
            )
    return None


def num_tokens_beyond_block(evidence: Evidence) -> Fault | None:
    draft = draft_of(evidence)
    if draft is None or draft.family is not Family.DFLASH:
        return None
    nested = draft.config.get("dflash_config")
    block = whole(draft.config, "block_size") or (whole(nested, "block_size") if isinstance(nested, dict) else None)
    if block is None or evidence.speculation.num_tokens <= block:
        return None
    return Fault(
        f"speculation.num_tokens is {evidence.speculation.num_tokens}, the draft was trained on blocks of {block}",
        f"Set it to at most {block}.",
    )


def schedule_invalid(evidence: Evidence) -> Fault | None:
    schedule = evidence.speculation.args.get(SCHEDULE_ARG)
    if schedule is None:
        return None
    problem = _schedule_problem(schedule)
    return None if problem is None else Fault(f"speculation.args.{SCHEDULE_ARG} {problem}", _RANGES)


_RANGES = "A list of [first batch size, last, tokens], from 1 on, without overlaps; tokens may be 0."


def _schedule_problem(schedule: object) -> str | None:
    if not isinstance(schedule, list) or not schedule:
        return f"is {schedule!r}"
    end = 0
    for entry in sorted(schedule, key=str) if not all(_is_range(item) for item in schedule) else sorted(schedule):
        if not _is_range(entry):
            return f"holds {entry!r}"
        if entry[0] > entry[1] or entry[0] < 1 or entry[2] < 0:
            return f"holds {entry!r}"
        if entry[0] <= end or (end == 0 and entry[0] != 1):
            return f"goes on with {entry!r} after batch size {end}"
        end = entry[1]
    return None


def _is_range(entry: object) -> bool:
    return isinstance(entry, list | tuple) and len(entry) == 3 and all(type(number) is int for number in entry)


def schedule_dropped(evidence: Evidence) -> Fault | None:
    ranks = evidence.engine_args.get("data_parallel_size") or 1
    if evidence.speculation.args.get(SCHEDULE_ARG) is None or ranks == 1:
        return None
    return Fault(
        f"speculation.args.{SCHEDULE_ARG} is set and engine.args.data_parallel_size is {ranks}",
        "Use more replicas where you wanted data parallelism, or leave the schedule out.",
    )


def states_over_stages(evidence: Evidence) -> Fault | None:
    stages = evidence.engine_args.get("pipeline_parallel_size") or 1
    if stages == 1 or evidence.method not in (Family.EAGLE3, Family.DFLASH):
        return None
    return Fault(
        f"speculation.method is {evidence.speculation.method} and engine.args.pipeline_parallel_size is {stages}",
        "Use tensor_parallel_size alone where the target fits into one node, or see that one engine starts first.",
    )


def positions(evidence: Evidence) -> Fault | None:
    draft = draft_of(evidence)
    if draft is None or draft.positions is None or draft.positions >= evidence.max_model_len:
        return None
    share = ""
    if (prompts := evidence.prompts) is not None and prompts.planned:
        percent = 100 * prompts.beyond / prompts.planned
        share = f"; {prompts.beyond:,} of {prompts.planned:,} planned prompts ({percent:.1f} %) are longer"
    return Fault(
        f"the draft was made for {draft.positions:,} positions,"
        f" engine.max_model_len is {evidence.max_model_len:,}{share}",
        "Expect little acceptance beyond; lower engine.max_model_len or rows.max_prompt_tokens if that is most rows.",
    )


def tensor_parallel(evidence: Evidence) -> Fault | None:
    target = evidence.engine_args.get("tensor_parallel_size") or 1
    given = evidence.speculation.args.get("draft_tensor_parallel_size")
    size = target if given is None else given
    if not isinstance(size, int) or size not in (1, target):
        return Fault(
            f"speculation.args.draft_tensor_parallel_size is {given!r}, engine.args.tensor_parallel_size is {target}",
            f"Set it to 1 or {target}, or leave it out.",
        )
    if evidence.method == Family.DRAFT_MODEL and size != target:
        return Fault(
            f"speculation.args.draft_tensor_parallel_size is {size}, engine.args.tensor_parallel_size is {target}",
            f"For a draft model vLLM wants both alike: set it to {target}.",
        )
    return _not_divisible(draft_of(evidence), size)


def _not_divisible(draft: Draft | None, size: int) -> Fault | None:
    heads = whole(draft.config, "num_attention_heads") if draft is not None else None
    if draft is None or heads is None or size == 1:
        return None
    groups = whole(draft.config, "num_key_value_heads") or heads
    if heads % size == 0 and (groups % size == 0 or size % groups == 0):
        return None
    return Fault(
        f"the draft has {heads} attention heads and {groups} key-value heads, and is split over {size} ranks",
        "Set speculation.args.draft_tensor_parallel_size to 1, or another tensor_parallel_size.",
    )


def tokenizer_mismatch(evidence: Evidence) -> Fault | None:
    """For a draft model: its ids are the target's ids, or nothing fits."""
    if evidence.method != Family.DRAFT_MODEL or evidence.speculation.args.get("use_heterogeneous_vocab"):
        return None
    target, draft = evidence.target.vocabulary, evidence.draft.vocabulary if evidence.draft is not None else None
    if target is None or draft is None:
        return None
    differing = [token for token, number in target.tokens.items() if draft.tokens.get(token, number) != number]
    shared = len(target.tokens.keys() & draft.tokens.keys())
    if not differing and shared >= 0.99 * max(len(target.tokens), len(draft.tokens)):
        return None
    example = ""
    if differing:
        token = differing[0]
        example = f"; {token!r} is {draft.tokens[token]} in the draft's and {target.tokens[token]} in the target's"
    return Fault(
        f"the draft's tokenizer has {draft.size:,} tokens, the target's {target.size:,}, {shared:,} in both{example}",
        "Name a draft model with the target's tokenizer, or set speculation.args.use_heterogeneous_vocab.",
    )


def tokenizer_of_other_target(evidence: Evidence) -> Fault | None:
    """A head that ships a tokenizer, and not the target's."""
    head = head_of(evidence)
    target, own = evidence.target.vocabulary, head.checkpoint.vocabulary if head is not None else None
    if target is None or own is None:
        return None
    differing = [token for token, number in target.tokens.items() if own.tokens.get(token, number) != number]
    if not differing and len(target.tokens.keys() & own.tokens.keys()) >= 0.99 * len(target.tokens):
        return None
    return Fault(
        f"the draft ships a tokenizer of {own.size:,} tokens that is not the target's ({target.size:,})",
        "Make sure that the draft was trained for this target.",
    )


def prompt_lookup(evidence: Evidence) -> Fault | None:
    args = evidence.speculation.args
    shortest, longest = args.get("prompt_lookup_min"), args.get("prompt_lookup_max")
    if evidence.method != "ngram" or not isinstance(shortest, int) or not isinstance(longest, int):
        return None
    if shortest <= longest:
        return None
    return Fault(
        f"speculation.args.prompt_lookup_min is {shortest}, prompt_lookup_max is {longest}", "Swap the two numbers."
    )


def expected_unfit(evidence: Evidence) -> Fault | None:
    expected, asked = evidence.speculation.expected, evidence.speculation.num_tokens
    if expected is None:
        return None
    shares = expected.by_position
    if asked and len(shares) > asked:
        return Fault(
            f"speculation.expected.by_position has {len(shares)} positions, num_tokens is {asked}",
            "Give at most num_tokens shares.",
        )
    if any(later > earlier for earlier, later in pairwise(shares)):
        return Fault(
            f"speculation.expected.by_position {shares} rises",
            "Each is the share of steps that accept at least so many tokens: it can only fall.",
        )
    return None


def settings_contradict(evidence: Evidence) -> Fault | None:
    speculation, given = evidence.speculation, evidence.speculation.model_fields_set
    if speculation.gate == "warn" and speculation.guard == "fail":
        return Fault(
            "speculation.gate is 'warn' and speculation.guard is 'fail'",
            "A draft that is dead at warm-up would be let in and end the run hours later: set gate to 'fail'.",
        )
    if "layer_convention" in given and speculation.method not in _LAYERED:
        return Fault(
            f"speculation.layer_convention is given and speculation.method is {speculation.method!r}",
            "Leave it out: this method reads no auxiliary layers.",
        )
    draft = head_of(evidence, Family.EAGLE3)
    if speculation.layer_convention == "output" and draft is not None and not draft.written_ids:
        return Fault(
            "speculation.layer_convention is 'output' and the draft's config.json names no auxiliary layers",
            "Leave it out, or write the layers that the head was trained on into its config.json.",
        )
    return None
