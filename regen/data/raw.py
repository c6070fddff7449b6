"""What a source is made of: its files, and its raw rows, readable or not. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from regen.data.text import canonical_json


class LoadError(StrEnum):
    """Why a row could not be read. Closed: these are counted."""

    BAD_JSON = "bad_json"
    BAD_CSV = "bad_csv"
    INVALID_UTF8 = "invalid_utf8"
    NOT_AN_OBJECT = "not_an_object"
    WRONG_FIELD_COUNT = "wrong_field_count"
    DUPLICATE_COLUMNS = "duplicate_columns"
    DUPLICATE_KEYS = "duplicate_keys"
    UNREADABLE_VALUE = "unreadable_value"
    DAMAGED_FILE = "damaged_file"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file, or one split of a dataset. `digest` is over the content (a dataset: the library's fingerprint)."""

    path: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class RawRow:
    """A raw row: exactly one of `value` and `error` is set.

    `location` is where a person finds it: `file.jsonl:17` (lines from 1), `file.json[3]`, `file.parquet[12]`,
    `name/split[7]` (rows from 0). `error` is (reason, detail). `raw` are the bytes as read, for formats made of text.
    """

    location: str
    value: Mapping[str, object] | None = None
    error: tuple[LoadError, str] | None = None
    raw: bytes = b""

    def identity(self) -> bytes:
        """What tells this row from others when it cannot be normalised: its bytes, else its value, else its error."""
        if self.raw:
            return self.raw
        if self.value is not None:
            return _value_bytes(self.value)
        return "\0".join(self.error or ()).encode("utf-8", "surrogatepass")


def _value_bytes(value: Mapping[str, object]) -> bytes:
    try:
        return canonical_json(value).encode("ascii")
    except (RecursionError, ValueError, TypeError):  # nested too deeply, a number too long, keys that are not text
        return repr(sorted(map(str, value))).encode("utf-8", "surrogatepass")
