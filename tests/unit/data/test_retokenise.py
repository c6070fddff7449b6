"""Text against ids, with real tokenizers: the toy target's, with and without merges, and templates that meddle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from regen.data.retokenise import Mismatch, survives_as_text, text_mismatch
from regen.data.template import TokenizerTemplate, load_template
from regen.data.turn_markers import TurnMarkers, turn_markers
from regen.records import SampledTurn
from tests.toy_target import CHAT_TEMPLATE, END_ID, START_ID, VOCAB_SIZE, build_toy_target

HE, LLO, HELLO = VOCAB_SIZE, VOCAB_SIZE + 1, VOCAB_SIZE + 2
MERGES = [["h", "e"], ["l", "l"], ["ll", "o"], ["he", "llo"]]
NEW_PIECES = ["he", "llo", "hello", "ll"]

FORGETS_THINKING = CHAT_TEMPLATE.replace(
    "message['content'] + '<|im_end|>",
    "(message['content'] if loop.last else message['content'].split('</think>')[-1]) + '<|im_end|>",
)
NEVER_CLOSES = CHAT_TEMPLATE.replace("+ '<|im_end|>\n' }}", "+ ('' if message['role'] == 'assistant' else '\n') }}")

Message = dict[str, object]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def answer(text: str) -> Message:
    return {"role": "assistant", "content": text}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> TokenizerTemplate:
    return loaded(tmp_path_factory.mktemp("toy"))


def loaded(folder: Path, text: str = CHAT_TEMPLATE, with_merges: bool = False) -> TokenizerTemplate:
    build_toy_target(folder)
    (folder / "chat_template.jinja").write_text(text, encoding="utf-8")
    if with_merges:
        path = folder / "tokenizer.json"
        tokenizer = json.loads(path.read_text(encoding="utf-8"))
        tokenizer["model"]["vocab"] |= {piece: VOCAB_SIZE + number for number, piece in enumerate(NEW_PIECES)}
        tokenizer["model"]["merges"] = MERGES
        path.write_text(json.dumps(tokenizer), encoding="utf-8")
    return load_template(folder, False, {})


def turns(template: TokenizerTemplate, messages: Sequence[Message], said: Sequence[Sequence[int]]) -> list[SampledTurn]:
    """What a run makes of these messages when the target samples `said`, turn by turn."""
    places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    return [
        SampledTurn(template.render(tuple(messages[:place]), None, None), tuple(ids), (END_ID,))
        for place, ids in zip(places, said, strict=True)
    ]


def found(template: TokenizerTemplate, messages: Sequence[Message], said: Sequence[Sequence[int]]) -> Mismatch | None:
    return text_mismatch(template, messages, turns(template, messages, said))


TWO_TURNS = (user("hi"), answer("hello"), user("and"), answer("you"))


def test_text_that_gives_its_ids_back_is_right_over_all_turns(template: TokenizerTemplate) -> None:
    assert found(template, TWO_TURNS, [[*b"hello", END_ID], [*b"you", END_ID]]) is None


def test_ids_of_an_answer_that_the_tokenizer_would_cut_elsewhere(tmp_path: Path) -> None:
    merging = loaded(tmp_path, with_merges=True)
    messages = (user("hi"), answer("hello"))
    assert found(merging, messages, [[HELLO, END_ID]]) is None
    assert found(merging, messages, [[HE, LLO, END_ID]]) is Mismatch.RETOKENISES_DIFFERENTLY


def test_a_turn_in_the_middle_that_retokenises_differently_is_found(tmp_path: Path) -> None:
    merging = loaded(tmp_path, with_merges=True)
    said = [[HE, LLO, END_ID], [*b"you", END_ID]]
    assert found(merging, TWO_TURNS, said) is Mismatch.RETOKENISES_DIFFERENTLY


def test_a_template_that_takes_thinking_out_of_earlier_turns(tmp_path: Path) -> None:
    forgetful = loaded(tmp_path, FORGETS_THINKING)
    thought = "<think>hm</think>"
    said = [[*f"{thought}a".encode(), END_ID], [*f"{thought}b".encode(), END_ID]]
    messages = (user("1"), answer(f"{thought}a"), user("2"), answer(f"{thought}b"))
    assert found(forgetful, messages[:2], said[:1]) is None
    assert found(forgetful, messages, said) is Mismatch.TEMPLATE_REWRITES_HISTORY


def test_an_answer_that_was_cut_is_closed_by_the_template_and_not_by_the_target(template: TokenizerTemplate) -> None:
    assert found(template, (user("hi"), answer("hel")), [[*b"hel"]]) is Mismatch.CLOSING_NOT_SAMPLED


def test_an_end_that_the_template_does_not_write(tmp_path: Path) -> None:
    messages = (user("hi"), answer("hello"))
    never_closing = loaded(tmp_path, NEVER_CLOSES)
    assert found(never_closing, messages, [[*b"hello", END_ID]]) is Mismatch.CLOSING_NOT_RENDERED


def test_a_prompt_that_was_not_made_from_these_messages(template: TokenizerTemplate) -> None:
    made = turns(template, (user("hi"), answer("a")), [[*b"a", END_ID]])
    assert text_mismatch(template, (user("HI"), answer("a")), made) is Mismatch.PROMPT_RENDERS_DIFFERENTLY


def test_a_conversation_that_the_template_refuses(template: TokenizerTemplate) -> None:
    messages = (user("hi"), answer("a"))
    late = ({"role": "system", "content": "late"},)
    made = turns(template, messages, [[*b"a", END_ID]])
    assert text_mismatch(template, (*messages[:1], *late, *messages[1:]), made) is Mismatch.TEMPLATE_REFUSED


def test_ids_alone(tmp_path: Path) -> None:
    merging = loaded(tmp_path, with_merges=True)
    assert survives_as_text(merging, (HELLO, END_ID))
    assert not survives_as_text(merging, (HE, LLO, END_ID))
    assert survives_as_text(merging, (START_ID, *b"user", END_ID))
    assert not survives_as_text(merging, (0xE2,))  # a part of a character


def test_what_a_template_writes_around_an_answer(template: TokenizerTemplate, tmp_path: Path) -> None:
    assert turn_markers(template, (END_ID,)) == TurnMarkers("<|im_start|>assistant\n", "<|im_end|>", "\n", 1, False)
    marked = "{% generation %}" + CHAT_TEMPLATE + "{% endgeneration %}"
    assert load_marks(tmp_path / "marked", marked) is True
    assert turn_markers(loaded(tmp_path / "open", NEVER_CLOSES), (END_ID,)) is None
    assert turn_markers(loaded(tmp_path / "refuses", "{{ raise_exception('no') }}"), (END_ID,)) is None


def load_marks(folder: Path, text: str) -> bool:
    markers = turn_markers(loaded(folder, text), (END_ID,))
    assert markers is not None
    return markers.marks_answers
