import pytest

from regen.data.dry_render import RenderJob, before_first_slot
from regen.data.rendering import Renderer, RenderSetup
from regen.errors import RegenError
from regen.records import Conversation, Message, Role, Stage
from tests.toy_target import build_toy_target


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return build_toy_target(tmp_path_factory.mktemp("toy"))


def job(*messages):
    given = tuple(Message(role, content) for role, content in messages)
    return RenderJob(Conversation((*given, Message(Role.ASSISTANT, None))))


def test_only_what_stands_before_the_first_slot_is_rendered():
    user, slot = Message(Role.USER, "x"), Message(Role.ASSISTANT, None)
    assert before_first_slot(Conversation((user, slot, user, slot), tools_json="[]")) == (user,)


def test_results_keep_the_order_and_a_bad_row_costs_itself(toy):
    bad = job((Role.USER, "x"), (Role.SYSTEM, "late"))
    chunks = [(name, [job((Role.USER, "x" * number)), bad]) for number, name in enumerate("abc", start=1)]
    with Renderer(RenderSetup(toy), 1) as renderer:
        made = list(renderer.map(chunks))
    assert [name for name, _ in made] == ["a", "b", "c"]
    lengths = [good.prompt_tokens for _, (good, _) in made]
    assert [length - lengths[0] for length in lengths] == [0, 1, 2]
    assert {(refused.refusal and refused.refusal.stage, refused.prompt_tokens) for _, (_, refused) in made} == {
        (Stage.RENDER, 0)
    }


def test_processes_that_die_end_planning_with_advice(tmp_path, monkeypatch):
    monkeypatch.setattr("regen.data.rendering._WORK_BEFORE_POOL", 0)
    with (
        Renderer(RenderSetup(tmp_path / "no target"), 2) as renderer,
        pytest.raises(RegenError, match="renders prompts died"),
    ):
        list(renderer.map([("a", [job((Role.USER, "x"))])]))
