"""Rows that come as token ids: `input_ids` with `loss_mask`, or `labels` that are -100 outside of the loss. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from regen.data.adapters.given import Given, Reading, Tokens, as_list, first, required
from regen.data.reasons import Reason, refuse

_IGNORED_LABEL = -100
_LARGEST_ID = 2**31 - 1


def read_tokens(value: Mapping[str, object], reading: Reading) -> Given:
    if not reading.keeps_answers:
        refuse(Reason.NEEDS_NATIVE, "token ids can only pass through: set the source's mode to native")
    ids = _integers(required(value, "input_ids"), "input_ids")
    mask = first(value, "loss_mask", "assistant_masks", "labels")
    if mask is None:
        refuse(Reason.MISSING_KEY, "input_ids without loss_mask (or labels): nothing says what the target made")
    is_mask = value.get("loss_mask") is not None or value.get("assistant_masks") is not None
    masked = _mask(mask) if is_mask else _mask_of_labels(mask, ids)
    if len(masked) != len(ids):
        refuse(Reason.BAD_TOKENS, f"{len(ids)} input_ids and {len(masked)} in the mask")
    if min(ids, default=0) < 0 or max(ids, default=0) > _LARGEST_ID:
        refuse(Reason.BAD_TOKENS, "input_ids hold a number that is no id")
    if 1 not in masked:
        refuse(Reason.NO_LOSS_TOKENS, f"none of {len(ids)} tokens is in the loss")
    return Given(turns=(), tokens=Tokens(ids, masked))


def _mask(given: object) -> tuple[int, ...]:
    mask = tuple(int(part) if isinstance(part, bool) else part for part in as_list(given, "loss_mask"))
    if not all(type(part) is int and part in (0, 1) for part in mask):
        refuse(Reason.BAD_TOKENS, "loss_mask holds something else than 0 and 1")
    return mask  # type: ignore[return-value]


def _mask_of_labels(given: object, ids: tuple[int, ...]) -> tuple[int, ...]:
    labels = _integers(given, "labels")
    for position, (label, id_) in enumerate(zip(labels, ids, strict=False)):
        if label not in (_IGNORED_LABEL, id_):
            refuse(Reason.BAD_TOKENS, f"labels[{position}] is {label}, and input_ids[{position}] is {id_}")
    return tuple(int(label != _IGNORED_LABEL) for label in labels)


def _integers(given: object, where: str) -> tuple[int, ...]:
    values = as_list(given, where)
    if not all(type(value) is int for value in values):
        refuse(Reason.BAD_TOKENS, f"{where} holds something else than whole numbers")
    return tuple(values)  # type: ignore[arg-type]
