"""The parts of examples/train_head.py that can be known without training: what is read, drafted, asked and attended."""

from __future__ import annotations

from typing import Any

import pytest

from examples.train_head import (
    IGNORED,
    Answer,
    answers_of,
    covered,
    draft_vocabulary,
    head_config,
    inputs,
    labels,
    may_attend,
    pace,
    rounded,
    shuffled,
    vocabulary_tables,
    wanted_ids,
    within,
)

ANSWER = Answer(token_ids=(7, 8, 9, 20, 21, 22, 23), prompt_tokens=3)


def generation(**fields: Any) -> dict[str, Any]:
    made = {
        "origin": "target",
        "finish_reason": "stop",
        "loss_mask": None,
        "prompt_token_ids": [1, 2],
        "completion_token_ids": [3, 4],
    }
    return {**made, **fields}


def test_only_what_the_target_sampled_and_did_not_loop_is_learnt() -> None:
    made = [
        generation(),
        generation(finish_reason="length"),
        generation(finish_reason="repetition"),
        generation(origin="native"),
    ]
    assert list(answers_of(made)) == [Answer((1, 2, 3, 4), 2)] * 2


def test_answers_are_taken_in_order_up_to_the_limit_and_have_their_places() -> None:
    sizes = (5, 100, 2, 6, 4)
    found = list(within((Answer(tuple(range(size)), 1) for size in sizes), tokens=12, longest=50))
    assert [(len(answer.token_ids), answer.start) for answer in found] == [(5, 0), (6, 5)]


def test_the_commonest_generated_tokens_can_be_drafted_and_prompts_do_not_count() -> None:
    answers = [Answer((5, 5, 5, 9, 9, 2), 3), Answer((5, 9, 2, 11), 1)]
    assert draft_vocabulary(answers, 2, 20) == [2, 9]
    assert covered(answers, [2, 9]) == pytest.approx(5 / 6)


def test_a_vocabulary_larger_than_what_was_seen_is_filled_up_without_doubles() -> None:
    assert draft_vocabulary([Answer((0, 4, 6), 1)], 4, 10) == [0, 1, 4, 6]
    assert draft_vocabulary([], 10, 10) == list(range(10))


def test_the_tables_say_the_same() -> None:
    d2t, t2d = vocabulary_tables([2, 3, 7], 9)
    assert [number + offset for number, offset in enumerate(d2t)] == [2, 3, 7]
    assert [token for token, can_be_drafted in enumerate(t2d) if can_be_drafted] == [2, 3, 7]
    assert len(t2d) == 9


def test_the_first_generated_token_is_never_asked_for_and_each_depth_begins_one_later() -> None:
    draft_id = {8: 80, 9: 90, 20: 0, 21: 1, 22: 2}
    assert labels(ANSWER, 0, draft_id) == [IGNORED, IGNORED, 1, 2, IGNORED]  # slot 2 has the last prompt token
    assert labels(ANSWER, 1, draft_id) == [IGNORED, IGNORED, IGNORED, 2, IGNORED]


def test_a_draft_sees_the_targets_slots_up_to_its_begin_and_its_own_after_that() -> None:
    pytest.importorskip("torch")
    first = may_attend(4, 0).tolist()
    assert first == [[other <= slot for other in range(4)] for slot in range(4)]
    third = may_attend(5, 2).view(5, 3, 5)
    assert [sorted(seen.nonzero().flatten().tolist()) for seen in third[4]] == [[0, 1, 2], [3], [4]]
    assert may_attend(4, 1)[0].tolist() == [False] * 4 + [True] + [False] * 3  # nothing before it: only itself


def test_lengths_are_rounded_up_to_few_different_ones() -> None:
    assert [rounded(count) for count in (1, 64, 65, 129)] == [64, 64, 128, 192]


def test_what_fills_an_answer_up_is_never_asked_for() -> None:
    torch = pytest.importorskip("torch")
    states = torch.ones(10, 6)
    own, tokens = inputs(states, Answer(ANSWER.token_ids, ANSWER.prompt_tokens, start=2))
    assert (len(own), len(tokens)) == (66, 66)
    assert own.sum() == 7 * 6
    assert tokens[:7].tolist() == list(ANSWER.token_ids)
    wanted = wanted_ids(ANSWER, 0, {21: 1, 22: 2, 23: 3}, 64).tolist()
    assert wanted == [IGNORED, IGNORED, 1, 2, 3, *[IGNORED] * 59]


def test_the_rate_rises_and_falls() -> None:
    shares = [pace(step / 100) for step in range(101)]
    assert max(shares) == pytest.approx(1.0)
    assert shares.index(max(shares)) == 5
    assert 0 < shares[0] < 0.1
    assert shares[-1] == 0.05


def test_every_answer_comes_once_before_one_comes_again_and_the_seed_decides_the_order() -> None:
    answers = [Answer((number, 1, 2), 1) for number in range(10)]
    one, other = shuffled(answers, 1), shuffled(answers, 1)
    epochs = [[next(one).token_ids[0] for _ in range(10)] for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 2
    assert epochs[0] != epochs[1]
    assert [next(other).token_ids[0] for _ in range(20)] == epochs[0] + epochs[1]


def test_the_config_names_its_layers_where_each_runner_reads_them() -> None:
    made = head_config({"hidden_size": 8, "num_hidden_layers": 12, "layer_types": ["full"] * 12}, (2, 6, 9), 100)
    assert made["eagle_aux_hidden_state_layer_ids"] == [2, 6, 9]
    assert made["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 6, 9]
    assert (made["num_hidden_layers"], made["draft_vocab_size"], made["hidden_size"]) == (1, 100, 8)
    assert "layer_types" not in made
