"""Elements, and the one place that writes them as text. A string in an element is text, whoever wrote it.

What a browser would not show, or would obey (control characters, turned writing direction), becomes a sign.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

_VOID = frozenset({"meta", "link", "input", "br"})
# Tags and attributes are ours alone; data that ended up here would be a defect.
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")


@dataclass(frozen=True, slots=True)
class Element:
    tag: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Verbatim:
    """The package's own style or script: it stands as it is, and so nothing of a run may be in it."""

    text: str


Node = Element | Verbatim | str
Child: TypeAlias = "Node | Iterable[Child] | None"
Value = str | int | float | bool | None


def e(tag: str, *children: Child, **attributes: Value) -> Element:
    """An element. `class_` is `class`, `aria_label` is `aria-label`; None and False leave an attribute out, True names
    it alone. Children may stand in sequences; None is none.
    """
    named = tuple(
        (name.rstrip("_").replace("_", "-"), "" if value is True else str(value))
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    return Element(tag, named, tuple(_flat(children)))


def render(node: Node) -> str:
    """The text of a node and all that is in it. Raises ValueError on a name that is none."""
    return "".join(_written(node))


def shown(text: str) -> str:
    """Text as it is shown: escaped for element and attribute alike, signs for what is not to be obeyed."""
    return escape("".join(map(_sign, text)), quote=True)


def _flat(children: Iterable[Child]) -> Iterator[Node]:
    for child in children:
        if isinstance(child, Element | Verbatim | str):
            yield child
        elif child is not None:
            yield from _flat(child)


def _written(node: Node) -> Iterator[str]:
    if isinstance(node, str):
        yield shown(node)
    elif isinstance(node, Verbatim):
        yield node.text
    else:
        attributes = "".join(f' {_named(name)}="{shown(value)}"' for name, value in node.attributes)
        yield f"<{_named(node.tag)}{attributes}>"
        if node.tag not in _VOID:
            for child in node.children:
                yield from _written(child)
            yield f"</{node.tag}>"


def _named(name: str) -> str:
    if not name or not _NAME.issuperset(name):
        raise ValueError(f"{name!r} is no name of a tag or an attribute")
    return name


def _sign(char: str) -> str:
    code = ord(char)
    if char in "\n\t" or 0x20 <= code < 0x7F:
        return char
    if code < 0x20:
        return chr(0x2400 + code)
    return f"[U+{code:04X}]" if _is_unsafe(code) else char


def _is_unsafe(code: int) -> bool:
    """Direction that a character turns stays turned behind it; what has no width hides; half a pair is no character."""
    return (
        0x7F <= code < 0xA0
        or code in (0xAD, 0x061C, 0x180E, 0xFEFF)
        or code in (0x200B, 0x200E, 0x200F)  # joiners between them are part of writing
        or 0x2028 <= code <= 0x202E
        or 0x2060 <= code <= 0x206F
        or 0xD800 <= code < 0xE000
        or 0xFFF9 <= code <= 0xFFFB
        or code >= 0xE0000
    )
