"""One generation as ids and mask: what the target saw (0) and what it sampled (1). Pure.

No text is looked at. A generation that brings its own mask (native rows) keeps it verbatim.
"""

from __future__ import annotations

from dataclasses import dataclass

from regen.records import SampledTurn
from regen.store.export.selection import LeftOut, Row


@dataclass(frozen=True, slots=True)
class MaskedTokens:
    """`loss_mask` has one 0 or 1 for each of `input_ids`."""

    input_ids: list[int]
    loss_mask: list[int]


def masked_tokens(generation: Row) -> MaskedTokens | LeftOut:
    """`input_ids` are prompt ids and completion ids, exactly. Its own mask covers the completion, or the whole."""
    prompt, completion = generation["prompt_token_ids"], generation["completion_token_ids"]
    mask = generation["loss_mask"]
    if mask is None:
        mask = [1] * len(completion)
    if len(mask) == len(completion):
        mask = [0] * len(prompt) + list(mask)
    if len(mask) != len(prompt) + len(completion):
        return LeftOut("its loss mask is of another length than its ids")
    if not any(mask):
        return LeftOut("no token to train on")
    return MaskedTokens([*prompt, *completion], list(mask))


def is_plain(generation: Row) -> bool:
    """Whether exactly the completion is trained on, so that text with roles can say the same."""
    mask = generation["loss_mask"]
    if mask is None:
        return bool(generation["completion_token_ids"])
    prompt, completion = len(generation["prompt_token_ids"]), len(generation["completion_token_ids"])
    return list(mask) in ([1] * completion, [0] * prompt + [1] * completion) and completion > 0


def sampled_turn(generation: Row, stop_token_ids: tuple[int, ...]) -> SampledTurn:
    """The generation's ids, for comparing them with text."""
    return SampledTurn(tuple(generation["prompt_token_ids"]), tuple(generation["completion_token_ids"]), stop_token_ids)
