"""`speculators` (0.9): JSONL of `input_ids` and `loss_mask`, one line a generation, for `speculators prepare-data`.

It takes such rows as they are and tokenizes nothing; a row longer than `--seq-length` is cut on the right, and dropped
if nothing to train on is left. `id` and `source` are for people: prepare-data drops them. Given a folder it reads every
`*.json` and `*.jsonl` below it, so nothing else here may have such a name.
"""

from __future__ import annotations

from regen.store.export.format import LengthLimit, TokenFormat

_GUIDE = """\
`speculators prepare-data --model TARGET --data FOLDER --output OUT --seq-length N` takes these rows as they are, ids
and mask, and tokenizes nothing. Given the folder it reads every `.jsonl` in it, whatever the split."""

SPECULATORS = TokenFormat("speculators", LengthLimit("speculators prepare-data --seq-length", 8192), _GUIDE)
