"""One row after another that fails, each at another stage, in the midst of rows that do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regen.data.template import TokenizerTemplate
from regen.protocols import Answer, ParsedAnswer
from regen.records import Phase
from regen.run import replica
from regen.run.commands.check import check
from regen.run.local import LocalCluster
from regen.run.look import look
from regen.run.session import seal_run, standing
from regen.run.start import Begun, StartOptions, resume
from regen.spec import RunSpec
from tests import virtual_time
from tests.runs import begin_run, drive, make_spec, shard_table
from tests.toy_target import CHAT_TEMPLATE

# A template that cannot take every row: of one, only the second user turn, and planning renders first prompts.
TEMPLATE = CHAT_TEMPLATE.replace(
    "{{ '<|im_start|>' + message",
    "{%- if message['content'] is in(['raise at once', 'raise now']) -%}{{ raise_exception('no') }}{%- endif -%}\n"
    "{{ '<|im_start|>' + message",
    1,
)
MEGABYTES_6 = 6_000_000
# What the fake engine says where these words are asked; upper-case letters stand in no other answer.
SAYS = {"panic": "P", "unparsable": "U", "half a character": "H", "very long": "L", "defect": "D"}


class Panic(BaseException):
    """As the Rust code of a tokenizer raises it."""


class OddParser:
    """Reads answers, some of them in a way of its own."""

    def parse(self, answer: Answer) -> ParsedAnswer:
        if "U" in answer.text:
            raise ValueError("an answer that no parser expects, with half a character \ud83d")
        return ParsedAnswer(answer.text.replace("H", "\ud83d").replace("L", "L" * (MEGABYTES_6 // 3)))


def two_turns(first: str, second: str) -> dict[str, Any]:
    turns = [("user", first), ("assistant", "OLD"), ("user", second), ("assistant", "OLD")]
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


BAD: dict[str, dict[str, Any]] = {
    "a dict where text belongs": {"prompt": {"text": "no"}},
    "refused by the template": {"prompt": "raise at once"},
    "longer than the context": {"prompt": "x" * 3000},
    "second turn longer than the context": two_turns("short", "y" * 3000),
    "second turn refused by the template": two_turns("fine", "raise now"),
    "panic": {"prompt": "panic"},
    "unparsable": {"prompt": "unparsable"},
    "unparsable in the second turn": two_turns("well", "unparsable"),
    "half a character": {"prompt": "half a character"},
    "very long": {"prompt": "very long"},
    "defect": two_turns("defect", "more"),
    "little room": {"prompt": "z" * 1980},
}
EXPECTED = {
    "a dict where text belongs": ("rejected", "normalize", "wrong_type"),
    "refused by the template": ("rejected", "render", "template_refused"),
    "longer than the context": ("rejected", "length", "longer_than_context"),
    "second turn longer than the context": ("partial", "length", "longer_than_context"),
    "second turn refused by the template": ("partial", "render", "template_refused"),
    "panic": ("rejected", "parse", "answer_unreadable"),
    "unparsable": ("rejected", "parse", "answer_unreadable"),
    "unparsable in the second turn": ("partial", "parse", "answer_unreadable"),
    "half a character": ("rejected", "write", "unstorable"),
    "very long": ("ok", None, None),
    "defect": ("failed", "generate", "internal_error"),
    "little room": ("ok", None, None),
}
GOOD = 90
EVERY = 7  # so many good rows before each bad one


def rows() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [two_turns(f"say {number}", "and then?") for number in range(GOOD)]
    for place, row in enumerate(BAD.values()):
        made.insert(place * (EVERY + 1) + EVERY, row)
    return made


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """The whole run, sealed. What is odd about template and parser stays odd for a resume."""
    with pytest.MonkeyPatch.context() as patch:
        make_odd(patch)
        begun = begin_run(spec_of(tmp_path_factory.mktemp("run")))
        status = virtual_time.run(drive(LocalCluster(), begun))
        assert status.phase is Phase.FINISHED
        seal_run(begun.storage, begun.worker_setup.run)
        yield begun


def make_odd(patch: pytest.MonkeyPatch) -> None:
    real_decode, real_control = TokenizerTemplate.decode, TokenizerTemplate.control_tokens

    def decode(template: TokenizerTemplate, ids: tuple[int, ...]) -> str:
        if ord("P") in ids:
            raise Panic("index out of bounds")
        return real_decode(template, ids)

    def control_tokens(template: TokenizerTemplate, text: str, only_special: bool = False) -> tuple[str, ...]:
        if "D" in text:
            raise RuntimeError("a defect of regen's own, with half a character \ud83d")
        return real_control(template, text, only_special)

    patch.setattr(TokenizerTemplate, "decode", decode)
    patch.setattr(TokenizerTemplate, "control_tokens", control_tokens)
    patch.setattr(replica, "build_parser", lambda answers, template: OddParser())


def spec_of(folder: Path) -> RunSpec:
    answers = [{"prompt_ids": list(asked.encode()), "ids": [ord(said)] * 3} for asked, said in SAYS.items()]
    spec = make_spec(
        folder,
        rows=rows(),
        engine={"replicas": 2, "slots": 4, "restarts": 0, "answers": answers},
        checkpoint={"rows_per_shard": 20},
        limits={"failed_share": None},
    )
    source = folder / "rows.jsonl"
    source.write_text(source.read_text(encoding="utf-8") + '{"prompt": "cut off\n', encoding="utf-8")
    (folder / "target" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return spec


def by_name(begun: Begun) -> dict[str, dict[str, Any]]:
    """The bad rows."""
    table = {row["ordinal"]: row for row in shard_table(Path(begun.storage.url)).to_pylist()}
    return {name: table[place * (EVERY + 1) + EVERY] for place, name in enumerate(BAD)}


def test_each_row_that_fails_ends_with_its_stage_and_reason(finished: Begun) -> None:
    found = {name: (row["status"], row["stage"], row["reason"]) for name, row in by_name(finished).items()}
    assert found == EXPECTED
    assert check(finished.storage).is_right


def test_no_other_row_is_touched(finished: Begun) -> None:
    bad = {row["ordinal"] for row in by_name(finished).values()}
    others = [row for row in shard_table(Path(finished.storage.url)).to_pylist() if row["ordinal"] not in bad]
    assert len(others) == GOOD + 1
    assert [(row["status"], row["stage"], row["reason"]) for row in others if row["status"] != "ok"] == [
        ("rejected", "load", "bad_json")
    ]
    assert {len(row["generations"]) for row in others if row["status"] == "ok"} == {2}


def test_failures_are_counted_by_reason(finished: Begun) -> None:
    reasons = look(finished.storage).reasons
    assert reasons["rejected"]["answer_unreadable"] == 2
    assert reasons["rejected"]["unstorable"] == 1
    assert reasons["partial"] == {"longer_than_context": 1, "template_refused": 1, "answer_unreadable": 1}
    assert reasons["failed"] == {"internal_error": 1}


def test_what_was_good_of_a_row_is_kept(finished: Begun) -> None:
    for name, row in by_name(finished).items():
        if row["status"] == "partial":
            assert len(row["generations"]) == 1, name
            assert [message["role"] for message in row["messages"]][:2] == ["user", "assistant"], name


def test_attempts_are_for_what_may_go_better_the_next_time(finished: Begun) -> None:
    attempts = {name: row["observed"]["attempts"] for name, row in by_name(finished).items()}
    assert attempts["defect"] == 3, "limits.attempts, and no more"
    assert {attempts[name] for name in EXPECTED if EXPECTED[name][1] in ("parse", "write")} == {1}


def test_a_cap_is_clipped_to_the_room_that_is_left_and_stored_as_it_was(finished: Begun) -> None:
    (generation,) = by_name(finished)["little room"]["generations"]
    room = 2048 - len(generation["prompt_token_ids"])
    assert 0 < room < 100
    assert generation["cap"] == room
    assert '"max_tokens": 100' in generation["sampling"]
    (usual,) = {turn["cap"] for turn in by_name(finished)["very long"]["generations"]}
    assert usual == 100


def test_an_answer_of_six_megabytes_is_kept_whole_and_survives_a_resume(finished: Begun) -> None:
    assert len(by_name(finished)["very long"]["generations"][0]["content"]) == MEGABYTES_6
    before = standing(finished.storage)
    begun = resume(finished.storage.url, StartOptions(processes=1), say=lambda text: None)
    assert virtual_time.run(drive(LocalCluster(), begun)).phase is Phase.FINISHED
    assert standing(begun.storage) == before
    assert check(begun.storage).is_right
