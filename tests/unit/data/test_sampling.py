import pytest
from hypothesis import given
from hypothesis import strategies as st

from regen.data.sampling import effective_sampling, generation_defaults, row_seed
from regen.errors import RowRefused, SpecError
from regen.spec import SamplingSpec


def sampled(spec=None, generation_config=None, eos=(1,), row_id="r", overrides=None):
    return effective_sampling(
        SamplingSpec(**({"max_tokens": 16} | (spec or {}))), generation_config or {}, eos, row_id, overrides or {}
    )


def test_unset_fields_are_neutral():
    made = sampled()
    assert (made.temperature, made.top_p, made.top_k, made.min_p) == (1.0, 1.0, 0, 0.0)
    assert (made.presence_penalty, made.frequency_penalty, made.repetition_penalty) == (0.0, 0.0, 1.0)
    assert (made.max_tokens, made.stop, made.stop_token_ids) == (16, (), (1,))


def test_the_spec_wins_over_the_generation_config_and_that_over_neutral():
    made = sampled({"top_p": 0.8}, {"top_p": 0.9, "temperature": 0.6, "top_k": 20, "max_tokens": 5, "max_length": 7})
    assert (made.top_p, made.temperature, made.top_k, made.max_tokens) == (0.8, 0.6, 20, 16)


def test_a_zero_in_the_spec_is_a_value():
    assert sampled({"temperature": 0, "top_k": 0}, {"temperature": 0.6, "top_k": 5}).temperature == 0
    assert sampled({"temperature": 0, "top_k": 0}, {"temperature": 0.6, "top_k": 5}).top_k == 0


def test_do_sample_false_means_greedy_unless_the_spec_says_otherwise():
    assert sampled(None, {"do_sample": False, "temperature": 0.6}).temperature == 0
    assert sampled({"temperature": 0.5}, {"do_sample": False}).temperature == 0.5
    assert sampled(None, {"do_sample": True}).temperature == 1.0


@pytest.mark.parametrize("value", ["0.7", True, [0.7]])
def test_what_is_no_number_is_named(value):
    with pytest.raises(SpecError, match=r"generation_config\.json: top_p"):
        sampled(None, {"top_p": value})


def test_null_in_the_generation_config_is_unset():
    assert sampled(None, {"top_k": None, "temperature": None}).temperature == 1.0


def test_stop_ids_are_those_of_spec_and_target_sorted_once():
    assert sampled({"stop_token_ids": [9, 1]}, eos=(5, 1)).stop_token_ids == (1, 5, 9)


MIX = {"temperature": [{"value": 0.6, "share": 0.7}, {"value": 1.0, "share": 0.3}]}


def test_a_mix_is_drawn_by_row_id_and_its_shares_are_met():
    drawn = [sampled(MIX, row_id=f"{number:032x}").temperature for number in range(4000)]
    assert drawn == [sampled(MIX, row_id=f"{number:032x}").temperature for number in range(4000)]
    assert set(drawn) == {0.6, 1.0}
    assert abs(drawn.count(0.6) / len(drawn) - 0.7) < 0.03


def test_a_part_without_a_share_is_never_drawn():
    mix = {"temperature": [{"value": 0.6, "share": 1.0}, {"value": 1.0, "share": 0.0}]}
    assert {sampled(mix, row_id=str(number)).temperature for number in range(500)} == {0.6}


def test_overrides_of_a_row_win():
    made = sampled({"temperature": 0.6}, overrides={"temperature": 1, "top_k": 3, "max_tokens": 4})
    assert (made.temperature, made.top_k, made.max_tokens) == (1.0, 3, 4)
    with pytest.raises(RowRefused):
        sampled(overrides={"temprature": 1})


@given(st.integers(), st.text(max_size=8), st.integers(0, 50), st.integers(0, 5))
def test_seeds_fit_and_are_the_same_again(run_seed, row_id, turn, round):
    seed = row_seed(run_seed, row_id.encode().hex(), turn, round)
    assert seed is not None
    assert 0 <= seed < 2**48
    assert seed == row_seed(run_seed, row_id.encode().hex(), turn, round)


def test_seeds_differ_by_everything_they_are_drawn_from():
    base = (0, "ab", 0, 0)
    variants = [base, (1, "ab", 0, 0), (0, "ac", 0, 0), (0, "ab", 1, 0), (0, "ab", 0, 1)]
    assert len({row_seed(*variant) for variant in variants}) == len(variants)
    assert row_seed(None, "ab", 0, 0) is None


def test_defaults_say_value_and_origin_of_every_field():
    spec = SamplingSpec(max_tokens=16, top_p=0.8, **MIX)
    made = generation_defaults(spec, {"top_k": 20, "top_p": 0.9}, (1,))
    assert made["top_p"] == {"value": 0.8, "from": "spec"}
    assert made["top_k"] == {"value": 20, "from": "generation_config"}
    assert made["min_p"] == {"value": 0.0, "from": "neutral"}
    assert made["temperature"] == {"value": MIX["temperature"], "from": "spec"}
    assert made["stop_token_ids"] == {"value": [1], "from": "target"}
    assert set(made) == set(effective_sampling(spec, {}, (1,), "r", {}).__slots__)
