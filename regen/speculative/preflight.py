"""What files alone can tell about speculation, before an engine starts: one table of checks. Pure.

It began with `EAGLE` asked for an EAGLE-3 draft: no error, every draft token rejected, days lost. vLLM 0.32 runs it
in silence when the architecture's name lets it. Each row of `CHECKS` is one such fault: what it is called, how bad it
is, why it matters, and the function that sees it. docs/preflight.md is made from the table (speculative/page.py).

It does not know what only an engine can show: a head with random weights is whole, and its counters have to tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from regen.speculative.checks import layers, method, settings, sizes, weights
from regen.speculative.evidence import Evidence, Fault, Finding, Severity

REFUSE, WARN, NOTE = Severity.REFUSE, Severity.WARN, Severity.NOTE


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table."""

    code: str
    severity: Severity
    title: str
    why: str
    look: Callable[[Evidence], Fault | None]

    def finding(self, evidence: Evidence) -> Finding | None:
        """What this check has to say, if anything."""
        fault = self.look(evidence)
        return None if fault is None else Finding(self.code, self.severity, fault.found, self.why, fault.fix)


@dataclass(frozen=True, slots=True)
class Section:
    """Checks that look at one thing."""

    title: str
    checks: tuple[Check, ...]


SECTIONS: tuple[Section, ...] = (
    Section(
        "Method",
        (
            Check(
                "method-mismatch",
                REFUSE,
                "The method is not the one that the draft is made for",
                "The engine may start and run so, rejecting every draft token without an error.",
                method.method_mismatch,
            ),
            Check(
                "weights-contradict-config",
                REFUSE,
                "The draft's config says one kind of draft, its weights have the form of another",
                "The engine goes by the config, loads what fits, and leaves the rest at its initial values.",
                method.weights_contradict_config,
            ),
            Check(
                "draft-architecture-unknown",
                REFUSE,
                "The installed engine has no class for the draft's architecture",
                "The engine would end while it starts, after the target is loaded.",
                method.draft_architecture_unknown,
            ),
            Check(
                "target-cannot-feed-draft",
                REFUSE,
                "The target's class in the installed engine hands over no inner hidden states",
                "The engine would end while it starts, after the target is loaded.",
                method.target_cannot_feed,
            ),
            Check(
                "mtp-absent",
                REFUSE,
                "MTP is asked for, and there are no prediction layers",
                "The engine ends while it starts, or drafts with layers at their initial values.",
                method.mtp_absent,
            ),
            Check(
                "path-decides-method",
                REFUSE,
                "A word in the target's path would change the method",
                "vLLM looks for words in the draft's path also when a method is given; for MTP that is the target's.",
                method.path_decides_method,
            ),
            Check(
                "parallel-drafting",
                WARN,
                "Parallel drafting, and a head that was not trained for it, or the other way round",
                "The head drafts from inputs that it has never seen.",
                method.parallel_head,
            ),
            Check(
                "verifier-mismatch",
                WARN,
                "The draft's config names another kind of target",
                "A draft predicts the one target that it was trained on.",
                method.verifier_mismatch,
            ),
        ),
    ),
    Section(
        "Auxiliary layers",
        (
            Check(
                "layer-ids-missing",
                NOTE,
                "The config names no auxiliary layers",
                "An EAGLE-3 head reads the states of the layers it was trained on; from others it drafts badly.",
                layers.ids_missing,
            ),
            Check(
                "layer-ids-malformed",
                REFUSE,
                "The layer ids are no list of whole numbers",
                "The runners ignore what they cannot read and take their default.",
                layers.ids_malformed,
            ),
            Check(
                "layer-ids-out-of-range",
                REFUSE,
                "A layer id is outside the target, or named twice",
                "That state is never captured, and the fusion layer gets fewer than it was made for.",
                layers.ids_out_of_range,
            ),
            Check(
                "layer-ids-count",
                REFUSE,
                "The number of layers is not what the fusion layer reads",
                "The fusion layer was trained on exactly so many states side by side.",
                layers.ids_count,
            ),
            Check(
                "layer-ids-conflict",
                REFUSE,
                "Two keys of the config name different layers",
                "Which one counts depends on the engine and its runner.",
                layers.ids_conflict,
            ),
            Check(
                "layer-ids-unread",
                NOTE,
                "A runner of the installed engine does not read the key that holds the layer ids",
                "It would take its default layers without a word.",
                layers.ids_unread,
            ),
            Check(
                "layer-convention",
                WARN,
                "The layer ids look as if they were counted the other way",
                "One layer beside the right one halves acceptance and shows as no error (1.11 where 1.80 was right).",
                layers.convention,
            ),
            Check(
                "layer-ids-unusual",
                WARN,
                "The layer ids lie close together",
                "Trainers take a low, a middle and a high layer; wrong layers draft badly and show as no error.",
                layers.ids_unusual,
            ),
            Check(
                "aux-states-off",
                REFUSE,
                "Auxiliary states are switched off, and the head has a fusion layer for them",
                "The fusion layer is skipped because widths happen to agree; accept length was 1.19 instead of 1.80.",
                layers.states_switched_off,
            ),
        ),
    ),
    Section(
        "Sizes",
        (
            Check(
                "hidden-size",
                REFUSE,
                "The draft was made for another hidden size",
                "It reads the target's hidden states.",
                sizes.hidden_size,
            ),
            Check(
                "vocabulary-size",
                REFUSE,
                "Draft and target have different vocabularies",
                "Ids that the draft proposes mean other tokens to the target.",
                sizes.vocabulary_size,
            ),
            Check(
                "vocabulary-padding",
                WARN,
                "The vocabularies differ by a little",
                "One tokenizer may be padded differently; two tokenizers would be useless.",
                sizes.vocabulary_padding,
            ),
            Check(
                "draft-vocabulary",
                REFUSE,
                "The draft's own vocabulary does not fit its config or its output layer",
                "The output layer cannot be loaded, or its rows mean other tokens.",
                sizes.draft_vocabulary,
            ),
            Check(
                "head-count",
                REFUSE,
                "Attention heads in the config and in the weights differ",
                "The weights cannot be loaded, or are cut at the wrong places.",
                sizes.head_counts,
            ),
            Check(
                "output-layer-missing",
                NOTE,
                "The head has no output layer of its own",
                "Legitimate: the engine shares the target's.",
                sizes.output_layer_missing,
            ),
        ),
    ),
    Section(
        "Draft vocabulary tables",
        (
            Check(
                "d2t-missing",
                REFUSE,
                "A reduced vocabulary without its table",
                "The engine aligns draft ids with the first target ids, and acceptance collapses.",
                sizes.d2t_missing,
            ),
            Check(
                "d2t-length",
                REFUSE,
                "The table has another length than the draft's vocabulary",
                "It belongs to another head, or the config does.",
                sizes.d2t_length,
            ),
            Check(
                "d2t-all-zero",
                REFUSE,
                "The table holds only zeros",
                "Then draft id n means target id n: a table that was never filled.",
                sizes.d2t_all_zero,
            ),
            Check(
                "d2t-out-of-range",
                REFUSE,
                "The table leads outside the target's vocabulary",
                "The engine would write outside its logits, on a GPU without an error.",
                sizes.d2t_out_of_range,
            ),
            Check(
                "d2t-unsorted",
                WARN,
                "The table is not in order",
                "Every known trainer writes it in order; a shuffled table gives each draft id another token's meaning.",
                sizes.d2t_unsorted,
            ),
            Check(
                "d2t-t2d-disagree",
                REFUSE,
                "The two tables do not say the same",
                "One of them was rebuilt over weights that were trained with the other.",
                sizes.tables_disagree,
            ),
        ),
    ),
    Section(
        "Files and weights",
        (
            Check(
                "draft-config-unusable",
                REFUSE,
                "The draft has no config that can be read",
                "Nothing can be said of the draft, and the engine cannot load it.",
                weights.config_unusable,
            ),
            Check(
                "weights-absent",
                REFUSE,
                "Weights are not there",
                "The engine would end while it starts, after the target is loaded.",
                weights.weights_absent,
            ),
            Check(
                "weights-pointer",
                REFUSE,
                "A pointer where a file belongs",
                "It was cloned without fetching the large files.",
                weights.weights_pointer,
            ),
            Check(
                "weights-damaged",
                REFUSE,
                "A weight file is empty, half downloaded or damaged",
                "The engine would end while it starts, after the target is loaded.",
                weights.weights_damaged,
            ),
            Check(
                "weights-unread",
                WARN,
                "The weights are in a form that is not looked into",
                "Shapes, tables and numbers are not checked.",
                weights.weights_unread,
            ),
            Check(
                "weights-incomplete",
                REFUSE,
                "Tensors are missing that the head needs",
                "vLLM leaves what a head lacks at its initial values, without an error.",
                weights.weights_incomplete,
            ),
            Check(
                "layer-count",
                REFUSE,
                "The config has another number of layers than the weights",
                "Layers without weights stay at their initial values; weights without a layer end the start.",
                weights.layer_count,
            ),
            Check(
                "weights-shape",
                REFUSE,
                "A tensor has another shape than the config asks for",
                "It cannot be loaded, or belongs to another head.",
                weights.weights_shape,
            ),
            Check(
                "weights-not-finite",
                REFUSE,
                "A tensor holds NaN or infinity (samples are looked at)",
                "Whatever the draft proposes is garbage.",
                weights.weights_not_finite,
            ),
            Check(
                "weights-zero",
                REFUSE,
                "A matrix holds only zeros (samples are looked at)",
                "It was never filled: the save went wrong.",
                weights.weights_zero,
            ),
        ),
    ),
    Section(
        "Settings",
        (
            Check(
                "num-tokens-missing",
                REFUSE,
                "How many tokens to draft is not said",
                "It decides cost and gain, and is never inherited from a checkpoint.",
                settings.num_tokens_missing,
            ),
            Check(
                "num-tokens-unfit",
                REFUSE,
                "The number of tokens does not fit the prediction layers",
                "The engine would end while it starts.",
                settings.num_tokens_unfit,
            ),
            Check(
                "num-tokens-beyond-block",
                WARN,
                "More tokens are asked for than the draft was trained to draft at once",
                "Positions beyond the block are guesses.",
                settings.num_tokens_beyond_block,
            ),
            Check(
                "sampling-excludes-speculation",
                REFUSE,
                "Sampling that the engine does not do with speculation",
                "vLLM refuses each request with min_p or a logit bias while speculation is on; SGLang drops min_p.",
                settings.sampling_excludes,
            ),
            Check(
                "sampling-changes-speculation",
                NOTE,
                "Sampling that lowers acceptance",
                "The draft proposes without these penalties, the target decides with them.",
                settings.sampling_changes,
            ),
            Check(
                "lossy-verification",
                REFUSE,
                "Verification that changes what is sampled",
                "The answers would no longer be the target's own, which is what they are made for.",
                settings.lossy,
            ),
            Check(
                "speculation-args-unknown",
                REFUSE,
                "A setting that the installed engine does not know",
                "The engine would end while it starts.",
                settings.args_unknown,
            ),
            Check(
                "schedule-invalid",
                REFUSE,
                "The schedule by batch size is not one",
                "The engine would end while it starts.",
                settings.schedule_invalid,
            ),
            Check(
                "schedule-dropped",
                WARN,
                "The schedule by batch size is dropped with data parallelism",
                "vLLM falls back to num_tokens at every batch size, with a line in its log only.",
                settings.schedule_dropped,
            ),
            Check(
                "states-over-stages",
                WARN,
                "The draft reads states of inner layers, and the target is in pipeline stages",
                "vLLM hands such states on from stage to stage for some targets only (of Llama's and Qwen2's kind; not"
                " of DeepSeek-V3's, Kimi-K2 among them). For others it ends after it has loaded all weights.",
                settings.states_over_stages,
            ),
            Check(
                "prompt-lookup",
                REFUSE,
                "The n-gram bounds are the wrong way round",
                "The engine would end while it starts.",
                settings.prompt_lookup,
            ),
            Check(
                "draft-positions",
                WARN,
                "The draft was made for shorter sequences than the run's",
                "Beyond its positions a draft is slower than none. The target's context is not shortened by it.",
                settings.positions,
            ),
            Check(
                "draft-tensor-parallel",
                REFUSE,
                "The draft cannot be split as asked",
                "The engine would end while it starts, or its ranks wait for one another for ever.",
                settings.tensor_parallel,
            ),
            Check(
                "tokenizer-mismatch",
                REFUSE,
                "Draft model and target have different tokenizers",
                "Ids that the draft proposes mean other tokens to the target.",
                settings.tokenizer_mismatch,
            ),
            Check(
                "tokenizer-of-other-target",
                WARN,
                "The head ships another tokenizer than the target's",
                "A head predicts the one target that it was trained on.",
                settings.tokenizer_of_other_target,
            ),
            Check(
                "expected-unfit",
                WARN,
                "The expected acceptance cannot be",
                "What is measured is compared with it.",
                settings.expected_unfit,
            ),
            Check(
                "settings-contradict",
                WARN,
                "Two settings contradict one another, or one means nothing",
                "One of them will not do what it was set for.",
                settings.settings_contradict,
            ),
        ),
    ),
)
CHECKS: tuple[Check, ...] = tuple(check for section in SECTIONS for check in section.checks)
_ACCEPT = Check(
    "accept-unknown",
    REFUSE,
    "speculation.accept names no finding",
    "A misspelt code accepts nothing.",
    lambda evidence: _unknown_accept(evidence),
)
ALL_CHECKS = (*CHECKS, _ACCEPT)


def preflight(evidence: Evidence, checks: Iterable[Check] = ALL_CHECKS) -> list[Finding]:
    """All findings, in the order of the table. What `speculation.accept` names does not refuse: it warns."""
    findings = [finding for check in checks if (finding := check.finding(evidence)) is not None]
    return with_accepted(findings, evidence.speculation.accept)


def with_accepted(findings: Iterable[Finding], codes: Iterable[str]) -> list[Finding]:
    """What is among `codes` does not refuse: it warns."""
    accepted = frozenset(codes)
    return [_accepted(finding) if finding.code in accepted else finding for finding in findings]


def is_refused(findings: Iterable[Finding]) -> bool:
    return any(finding.severity is REFUSE for finding in findings)


def _accepted(finding: Finding) -> Finding:
    if finding.severity is not REFUSE:
        return finding
    return replace(finding, severity=WARN, found=f"{finding.found} (accepted: speculation.accept names {finding.code})")


def _unknown_accept(evidence: Evidence) -> Fault | None:
    codes = {check.code for check in ALL_CHECKS} | evidence.served_codes
    unknown = [code for code in evidence.speculation.accept if code not in codes]
    if not unknown:
        return None
    return Fault(f"speculation.accept names {unknown[0]!r}", "The codes are in docs/preflight.md.")
