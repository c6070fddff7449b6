import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from regen.data.template import load_template
from regen.errors import RowRefused, SpecError
from regen.records import Stage
from tests.toy_target import END_ID, START_ID, build_toy_target

USER = ({"role": "user", "content": "hi"},)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return build_toy_target(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def template(toy):
    return load_template(toy, False, {})


def with_template(toy, tmp_path, text, **kwargs):
    folder = build_toy_target(tmp_path / "other")
    (folder / "chat_template.jinja").write_text(text)
    return load_template(folder, False, kwargs)


def test_ids_are_what_the_template_yields(template):
    expected = [START_ID, *b"user\nhi", END_ID, *b"\n", START_ID, *b"assistant\n"]
    assert list(template.render(USER, None, None)) == expected


def test_no_second_bos_when_the_template_writes_one(toy, tmp_path):
    folder = build_toy_target(tmp_path / "bos")
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0]['content'] }}")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [START_ID], "tokens": ["<|im_start|>"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert load_template(folder, False, {}).render(USER, None, None) == (START_ID, *b"hi")


def test_decoding_drops_special_tokens_and_nothing_else(template):
    assert template.decode((*b"a , b", END_ID)) == "a , b"
    assert template.decode(tuple(range(97, 123))) == "abcdefghijklmnopqrstuvwxyz"


def test_the_template_that_raises_refuses_the_row(template):
    messages = ({"role": "user", "content": "x"}, {"role": "system", "content": "late"})
    with pytest.raises(RowRefused) as caught:
        template.render(messages, None, None)
    assert (caught.value.stage, caught.value.reason) == (Stage.RENDER, "template_refused")
    assert "a system message must be the first one" in caught.value.detail


@pytest.mark.parametrize("text", ["{{ 1 // 0 }}", "{{ messages[7].content.x }}", "{% for x in y %}", ""])
def test_whatever_a_template_does_costs_the_row_only(toy, tmp_path, text):
    with pytest.raises((RowRefused, SpecError)):
        with_template(toy, tmp_path, text).render(USER, None, None)


def test_text_that_no_tokenizer_takes_refuses_the_row(template):
    with pytest.raises(RowRefused):
        template.render(({"role": "user", "content": "\ud83d"},), None, None)


@pytest.mark.parametrize("content", [None, ["a"], [{"type": "text", "text": "hi"}], 3, {}])
def test_nothing_but_text_reaches_a_template(toy, tmp_path, content):
    lenient = with_template(toy, tmp_path, "{{ messages[0]['content'] }}")
    with pytest.raises(RowRefused) as caught:
        lenient.render(({"role": "user", "content": content},), None, None)
    assert caught.value.reason == "content_not_text"


def test_kwargs_of_the_row_win_over_those_of_the_spec(toy, tmp_path):
    template = with_template(toy, tmp_path, "{{ a }}{{ b }}", a=1, b=1)
    assert bytes(template.render(USER, None, None)) == b"11"
    assert bytes(template.render(USER, None, '{"b": 2}')) == b"12"


def test_a_row_cannot_set_what_regen_sets(template):
    with pytest.raises(RowRefused):
        template.render(USER, None, '{"tokenize": false}')


def test_tools_reach_the_template_as_objects(toy, tmp_path):
    template = with_template(toy, tmp_path, "{% for tool in tools %}{{ tool.name }}{% endfor %}!")
    assert bytes(template.render(USER, '[{"name": "a"}, {"name": "b"}]', None)) == b"ab!"


def test_truncation_and_padding_of_a_tokenizer_file_are_cleared(tmp_path):
    folder = build_toy_target(tmp_path / "cut")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    long = ({"role": "user", "content": "x" * 20_000},)
    assert len(load_template(folder, False, {}).render(long, None, None)) > 20_000


def test_many_threads_may_render_at_once(template):
    texts = [f"row {number} " * (number % 50 + 1) for number in range(400)]
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda text: template.render(({"role": "user", "content": text},), None, None), texts))
    assert [template.decode(ids) for ids in made] == [f"user\n{text}\nassistant\n" for text in texts]


def test_the_toy_target_needs_no_torch(toy):
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from transformers import AutoTokenizer\n"
        f"print(AutoTokenizer.from_pretrained({str(toy)!r}).encode('az'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[97, 122]"
