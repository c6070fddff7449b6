"""The formats by name. Pure. A new one is a file beside this one and a line here."""

from __future__ import annotations

from regen.store.export.automodel import AUTOMODEL
from regen.store.export.format import Format
from regen.store.export.messages import MESSAGES
from regen.store.export.sharegpt import SHAREGPT
from regen.store.export.specforge import SPECFORGE, SPECFORGE_IDS
from regen.store.export.speculators import SPECULATORS

_ALL: tuple[Format, ...] = (SPECULATORS, SPECFORGE, SPECFORGE_IDS, AUTOMODEL, MESSAGES, SHAREGPT)
FORMATS: dict[str, Format] = {each.name: each for each in _ALL}
