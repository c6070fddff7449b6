"""Texts whose ids a server's tokenizer must make as the target's own does: a plain one in several scripts, and prompts.

A prompt is the target's template over a short conversation, with its control tokens written out: what only another
model of the same family has otherwise shows there.
"""

from __future__ import annotations

from contextlib import suppress

from regen.engines.openai_tokenizer import KnownText
from regen.errors import RowRefused
from regen.protocols import ChatTemplate

_TEXTS = (
    "Hello, world! It's 3.14159 (or 22/7).",
    "def area(r):\n\treturn math.pi * r ** 2  # πr²\n\n    pass",
    "敏捷的棕色狐狸。 Быстрая лисица. مرحبا 🙂",
)


def known_texts(template: ChatTemplate) -> tuple[KnownText, ...]:
    """Fewer where the template refuses such a conversation: it may want tools, say."""
    found = []
    for text in _TEXTS:
        with suppress(RowRefused):
            ids = template.render(({"role": "user", "content": text},), None, None)
            found.append(KnownText(template.text_with_special_tokens(ids), template.reencoded(ids)))
    return tuple(found)
