"""The page's style and script, as they are packaged, and the policy that lets a browser obey these and nothing else."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class Assets:
    """`digest` changes with either; a live page that has another one is loaded anew as a whole."""

    style: str
    script: str
    digest: str


@cache
def assets() -> Assets:
    """Read once a process."""
    style, script = (packaged(name) for name in ("page.css", "page.js"))
    return Assets(style, script, hashlib.blake2b(f"{style}\0{script}".encode(), digest_size=8).hexdigest())


def policy(is_live: bool) -> str:
    """Forbids everything but the page's own style and script, by their hash; a live page may ask its own server."""
    rules = (
        "default-src 'none'",
        f"style-src '{_hash(assets().style)}'",
        f"script-src '{_hash(assets().script)}'",
        "img-src data:",  # an empty icon, or browsers ask for /favicon.ico
        "base-uri 'none'",
        "form-action 'none'",
        *(("connect-src 'self'",) if is_live else ()),
    )
    return "; ".join(rules)


def packaged(name: str) -> str:
    """A text of this package. Raises ValueError if it could end the element that it stands in."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    if "</" in text or "<!--" in text:
        raise ValueError(f"{name} must not hold '</' or '<!--': it stands inside its element as it is")
    return text


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
