"""Whether a server's tokenizer is the target's: it is asked for the ids of a few texts whose ids are known.

A server of another model may take the ids and answer them, in words that mean nothing. vLLM and SGLang show their
tokenizer at `/tokenize`; what is not shown is not guessed. Costs one small request for each text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regen.engines.http import Connection, Reply
from regen.errors import ServerUnavailable, SpecError

TOKENIZE_SECONDS = 15.0
_ABSENT = (400, 401, 403, 404, 405, 422, 500, 501)
_SHOWN_IDS = 8


@dataclass(frozen=True, slots=True)
class KnownText:
    """A text, special tokens written out, and the ids that the target's own tokenizer makes of it."""

    text: str
    token_ids: tuple[int, ...]


async def shows_the_targets_tokenizer(connection: Connection, model: str, known: Sequence[KnownText]) -> bool:
    """False: it does not show it. Raises SpecError where it is another one, ServerUnavailable."""
    for one in known:
        body = {"model": model, "prompt": one.text, "add_special_tokens": False}
        found = _ids(connection, await connection.post("/tokenize", body, TOKENIZE_SECONDS))
        if found is None:
            return False
        if difference := differs(one, found):
            raise SpecError(
                f"{connection.url} has another tokenizer than target.model: {difference}. Is it the target that it"
                " serves, with the target's own tokenizer (vLLM: --tokenizer-mode hf)?"
            )
    return bool(known)


def differs(known: KnownText, found: Sequence[int]) -> str:
    """What differs, for people; empty: nothing."""
    if tuple(found) == known.token_ids:
        return ""
    at = next((at for at, (ours, its) in enumerate(zip(known.token_ids, found, strict=False)) if ours != its), None)
    at = min(len(known.token_ids), len(found)) if at is None else at
    ours, its = known.token_ids[at : at + _SHOWN_IDS], tuple(found[at : at + _SHOWN_IDS])
    return (
        f"of the text {known.text[:120]!r} it makes {len(found)} ids, the target's tokenizer {len(known.token_ids)};"
        f" from place {at} on they are {list(its)} there and {list(ours)} here"
    )


def _ids(connection: Connection, reply: Reply) -> list[int] | None:
    """None: not shown."""
    tokens = reply.fields().get("tokens")
    if reply.is_ok and isinstance(tokens, list) and all(type(token) is int for token in tokens):
        return tokens
    if reply.is_ok or reply.status in _ABSENT:
        return None
    raise ServerUnavailable(f"POST {connection.url}/tokenize: status {reply.status}")
