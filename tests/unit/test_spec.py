"""The spec: what is accepted, what is refused and how it is said, what the fingerprint covers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from regen.errors import SpecError
from regen.spec import (
    EndpointSpec,
    dump_spec,
    fingerprint,
    load_spec,
    output_shaping,
    parse_size_bytes,
    parse_spec,
    with_absolute_paths,
)
from regen.spec_text import commented_spec


def raw(**changes: Any) -> dict[str, Any]:
    return {
        "name": "x",
        "output": "runs/x",
        "target": {"model": "m"},
        "engine": {"kind": "vllm", "slots": 4},
        "sampling": {"max_tokens": 10},
        "sources": [{"name": "a", "path": "a.jsonl"}],
        **changes,
    }


def refusal(**changes: Any) -> str:
    with pytest.raises(SpecError) as caught:
        parse_spec(raw(**changes), origin="spec.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": {"model": "m", "nodel": "x"}}, "spec.yaml: target.nodel: unknown key"),
        ({"sampling": {}}, "spec.yaml: sampling.max_tokens: is missing"),
        ({"engine": {"kind": "vllm", "slots": "many"}}, "spec.yaml: engine.slots: "),
        ({"engine": {"kind": "sglang"}}, "spec.yaml: engine: kind: 'sglang' is none of 'vllm', 'fake', 'openai'"),
        ({"sources": [{"name": "a", "path": "x"}, {"name": "a", "path": "y"}]}, "the name 'a' is used twice"),
        ({"speculation": {"method": "eagle3", "num_tokens": 3}}, "draft is missing: method 'eagle3' needs one"),
        (
            {"speculation": {"method": "ngram", "draft": "d", "num_tokens": 3}},
            "draft 'd' conflicts with method 'ngram'",
        ),
        ({"sampling": {"max_tokens": 9999}}, "sampling.max_tokens (9999) leaves no room"),
        ({"sampling": {"max_tokens": 9, "temperature": 0.001}}, "neither 0 (greedy) nor in 0.01..2"),
        ({"sampling": {"max_tokens": 9, "temperature": [{"value": 1, "share": 0.4}]}}, "must add up to 1"),
        ({"sources": [{"name": "a", "path": "x", "fields": {"messages": ""}}]}, "fields.messages: is empty"),
        ({"sources": [{"name": "a", "path": "x", "weight": 1e6}]}, "weight: "),
        ({"sources": [{"name": "a", "path": "x", "weight": float("inf")}]}, "weight: "),
        ({"sources": [{"name": "a", "path": "x", "weight": float("nan")}]}, "weight: "),
        ({"sources": [{"name": "a", "path": "x", "filter": {"s": {"min": float("nan")}}}]}, "filter"),
        ({"sources": [{"name": "a", "path": "x", "filter": {"s": float("inf")}}]}, "filter"),
        ({"sources": [{"name": "a", "path": "x", "filter": {"s": [1, float("nan")]}}]}, "filter"),
        ({"sources": [{"name": "a", "path": "x", "fields": {"mesages": "m"}}]}, "fields.mesages: is no key that regen"),
        (
            {"sources": [{"name": "a", "path": "x", "format": "tokens"}]},
            "format: tokens conflicts with mode: regenerate",
        ),
        (
            {"sources": [{"name": "a", "path": "x", "mode": "native", "sampling": {"top_k": 3}}]},
            "sampling conflicts with mode: native",
        ),
        ({"sources": [{"name": "a", "path": "x", "sampling": {"max_tokens": 4096}}]}, "a: sampling.max_tokens (4096)"),
        ({"sources": [{"name": "a", "path": "x", "sampling": {"temperature": 0.001}}]}, "neither 0 (greedy)"),
        ({"sources": [{"name": "a", "path": "x", "filter": {"score": {"least": 3}}}]}, "sources.0.filter.score"),
        ({"target": {"model": "m", "template_kwargs_mix": [{"value": {}, "share": 0.5}]}}, "must add up to 1"),
        ({"policies": {"empty_turns": "keep"}}, "spec.yaml: policies.empty_turns: "),
        ({"checkpoint": {"max_bytes": "2GiB"}}, "checkpoint.max_bytes is larger than"),
        ({"checkpoint": {"max_bytes": "much"}}, "checkpoint.max_bytes: "),
    ],
)
def test_a_bad_key_is_named_by_its_path(changes: dict[str, Any], said: str) -> None:
    assert said in refusal(**changes)


def servers(**changes: Any) -> dict[str, Any]:
    return {"kind": "openai", "endpoints": [{"url": "http://h:1"}, {"url": "https://g/x/v1"}], **changes}


def test_each_endpoint_is_one_replica_and_the_spec_survives_its_own_yaml() -> None:
    spec = parse_spec(raw(engine=servers()), origin="x")
    assert spec.engine.most_replicas == 2
    assert [spec.engine.endpoint_of(slot) for slot in range(2)] == spec.engine.endpoints
    assert parse_spec(yaml.safe_load(dump_spec(spec)), origin="y") == spec


@pytest.mark.parametrize(
    ("replicas", "fewest", "most"),
    [(3, 5, 5), ("auto", 3, 66), ({"max": 4}, 3, 6), ({"min": 2, "max": 4}, 4, 6)],
)
def test_servers_have_the_first_slots_and_engines_of_our_own_the_others(
    replicas: object, fewest: int, most: int
) -> None:
    engine = parse_spec(raw(engine=servers(kind="fake", replicas=replicas)), origin="x").engine
    assert (engine.fewest_replicas, engine.most_replicas) == (fewest, most)
    assert [slot for slot in range(most) if engine.endpoint_of(slot) is None] == list(range(2, most))


def test_each_replica_has_its_own_number_of_sequences() -> None:
    endpoints = [{"url": "http://h:1", "slots": 128}, {"url": "http://h:2"}]
    engine = parse_spec(raw(engine=servers(kind="fake", replicas=2, slots=8, endpoints=endpoints)), origin="x").engine
    assert [engine.slots_of(slot) for slot in range(4)] == [128, 8, 8, 8]
    assert engine.most_slots == 152


def test_the_same_server_twice_is_refused_however_it_is_written() -> None:
    said = refusal(engine=servers(endpoints=[{"url": "http://h:1/v1/"}, {"url": "http://h:1"}]))
    assert "engine: endpoints: http://h:1 stands twice" in said


@pytest.mark.parametrize("engine", [{"kind": "fake"}, servers(kind="fake"), servers(kind="vllm")])
def test_a_fleet_without_engines_of_its_kind_is_refused(engine: dict[str, Any]) -> None:
    assert "nothing but servers is kind: openai" in refusal(engine={**engine, "replicas": {"min": 0, "max": 0}})


@pytest.mark.parametrize("replicas", [0, -1, "many", {"min": 3, "max": 2}, {"min": 1}])
def test_a_number_of_replicas_that_means_nothing_is_refused(replicas: object) -> None:
    assert "engine.replicas" in refusal(engine={"kind": "fake", "replicas": replicas})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": servers(endpoints=[])}, "engine.endpoints: "),
        ({"engine": servers(replicas=3)}, "engine.replicas: "),
        ({"engine": servers(token_timeout_seconds=600)}, "token_timeout_seconds (600) must be below"),
        ({"engine": servers(outage_seconds=600)}, "outage_seconds (600) must be below"),
        ({"engine": servers(endpoints=[{"url": "h:1"}])}, "engine.endpoints.0: url: http://HOST:PORT is wanted"),
        (
            {"engine": servers(), "speculation": {"method": "ngram", "num_tokens": 3}},
            "speculation.calibrate must be off with engine.endpoints",
        ),
        (
            {"engine": servers(), "speculation": {"method": "ngram", "num_tokens": 3, "calibrate": "off"}},
            "speculation.guard cannot be `disable` with engine.endpoints",
        ),
    ],
)
def test_what_servers_cannot_do_is_refused(changes: dict[str, Any], said: str) -> None:
    assert said in refusal(**changes)


@pytest.mark.parametrize(
    "endpoint",
    [
        {"url": "http://user:S3CRET@h:1"},
        {"url": "http://h:1?key=S3CRET"},
        {"url": "http://h:1#S3CRET"},
        {"url": "http://h:1", "api_key_env": "sk-S3CRET"},
        {"url": "http://h:1", "api_key_env": "S3CRET in words"},
    ],
)
def test_a_secret_in_a_spec_is_refused_unprinted(endpoint: dict[str, Any]) -> None:
    said = refusal(engine=servers(endpoints=[endpoint]))
    assert "engine.endpoints.0: " in said
    assert "S3CRET" not in said


def test_servers_may_change_between_sessions_and_where_ids_come_from_may_not() -> None:
    moved = servers(endpoints=[{"url": "http://other:1", "api_key_env": "KEY", "model": "m"}], slots=9)
    assert shaped(engine=moved) == shaped(engine=servers())
    assert shaped(engine=servers(ids="retokenised")) != shaped(engine=servers())


def test_every_bad_key_is_named_at_once() -> None:
    said = refusal(target={"model": "m", "one": 1}, sampling={"max_tokens": 1, "two": 2})
    assert "target.one: unknown key" in said
    assert "sampling.two: unknown key" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name: x\nname: y\n", "the key 'name' stands twice"),
        (b"- a\n- b\n", "a spec is a mapping"),
        (b"a: [", "is not YAML"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_spec_is_said_to_be_none(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=said):
        load_spec(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nowhere\.yaml: cannot be read"):
        load_spec(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("text", "size"), [("64MiB", 2**26), ("1.5 GiB", 3 * 2**29), ("10kB", 10_000), ("7", 7), (8, 8)]
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size_bytes(text) == size


def test_the_commented_spec_is_a_spec_and_names_every_key() -> None:
    text = commented_spec()
    parsed = parse_spec(yaml.safe_load(text), origin="init")
    for section in ("target", "engine", "speculation", "sampling", "rows", "checkpoint", "limits", "metrics"):
        model = getattr(parsed, section)
        for name, field in type(model).model_fields.items():
            assert f"{name}:" in text, f"{section}.{name}"
            assert field.description, f"{section}.{name} has no explanation"
    assert "# per_gpu_hour:" in text


def test_the_commented_spec_shows_a_server_that_is_taken_as_it_stands() -> None:
    lines = commented_spec().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("  # endpoints:"))
    shown = [lines[start], *lines[start + 1 : start + 1 + len(EndpointSpec.model_fields)]]
    engine = yaml.safe_load("\n".join(line.replace("# ", "  ", 1) for line in shown).replace("HOST:PORT", "h:1"))
    assert engine["endpoints"][0].keys() == EndpointSpec.model_fields.keys()
    assert parse_spec(raw(engine={"kind": "openai", **engine}), origin="x").engine.endpoint_of(0) == EndpointSpec(
        url="http://h:1"
    )


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"port": 9501, "engine_port": 9500}, r"metrics\.port \(9501\).*metrics\.engine_port \(9500\) to 9503"),
        ({"engine_port": 65533}, r"metrics\.engine_port \(65533\) leaves no ports for 4 replicas"),
        ({"engine_port": 0}, r"metrics\.engine_port"),
        ({"hold_seconds": -1}, r"metrics\.hold_seconds"),
    ],
)
def test_ports_of_engines_are_beside_the_runs_own(metrics: dict[str, Any], said: str) -> None:
    engine = {"kind": "fake", "replicas": 4}
    parse_spec(raw(engine=engine, metrics={"port": 9464, "engine_port": 9465}), origin="x")
    parse_spec(raw(engine=engine, metrics={"port": None, "engine_port": 9464}), origin="x")
    with pytest.raises(SpecError, match=said):
        parse_spec(raw(engine=engine, metrics=metrics), origin="x")


def test_a_price_is_one_of_money() -> None:
    with pytest.raises(SpecError, match=r"price\.per_gpu_hour"):
        parse_spec(raw(price={"per_gpu_hour": -1}), origin="x")
    with pytest.raises(SpecError, match=r"price\.currency"):
        parse_spec(raw(price={"per_gpu_hour": 1, "currency": "a\nb"}), origin="x")
    with pytest.raises(SpecError, match=r"price\.per_gpu_hour: is missing"):
        parse_spec(raw(price={"currency": "EUR"}), origin="x")


def test_a_spec_survives_its_own_yaml() -> None:
    spec = parse_spec(raw(speculation={"method": "ngram", "num_tokens": 2}), origin="x")
    assert parse_spec(yaml.safe_load(dump_spec(spec)), origin="y") == spec


def test_relative_paths_become_absolute_and_hub_names_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").touch()
    sources = [{"name": "a", "path": "a.jsonl"}, {"name": "b", "path": "d/*.csv"}, {"name": "c", "path": "org/set"}]
    spec = with_absolute_paths(parse_spec(raw(target={"model": "org/model"}, sources=sources), origin="x"))
    assert spec.output == str(tmp_path / "runs/x")
    assert spec.target.model == "org/model"
    assert [source.path for source in spec.sources] == [str(tmp_path / "a.jsonl"), str(tmp_path / "d/*.csv"), "org/set"]


def shaped(**changes: Any) -> str:
    return fingerprint(output_shaping(parse_spec(raw(**changes), origin="x")))


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": {"max_tokens": 11}},
        {"sampling": {"max_tokens": 10, "seed": 1}},
        {"sampling": {"max_tokens": 10, "temperature": 0.5}},
        {"target": {"model": "m", "template_kwargs": {"thinking": True}}},
        {"engine": {"kind": "vllm", "slots": 4, "max_model_len": 100}},
        {"engine": {"kind": "vllm", "slots": 4, "args": {"dtype": "float16"}}},
        {"engine": {"kind": "vllm", "slots": 4, "args": {"logits_processors": ["mine"]}}},
        {"sources": [{"name": "a", "path": "a.jsonl", "limit": 3}]},
        {"rows": {"dedupe": True}},
        {"policies": {"empty_turns": "drop"}},
        {"sources": [{"name": "a", "path": "a.jsonl", "mode": "native"}]},
        {"target": {"model": "m", "template_kwargs_mix": [{"value": {"thinking": True}, "share": 1}]}},
        {"checkpoint": {"rows_per_shard": 3}},
    ],
)
def test_what_shapes_outputs_is_in_the_fingerprint(changes: dict[str, Any]) -> None:
    assert shaped(**changes) != shaped()


@pytest.mark.parametrize(
    "changes",
    [
        {"speculation": {"method": "ngram", "num_tokens": 2}},
        {"engine": {"kind": "vllm", "slots": 9, "replicas": 3, "stall_timeout_seconds": 5}},
        {"engine": {"kind": "vllm", "slots": 4, "args": {"tensor_parallel_size": 8}}},
        {"sources": [{"name": "a", "path": "elsewhere/a.jsonl"}]},
        {"checkpoint": {"interval_seconds": 3}},
        {"limits": {"hours": 3}},
        {"metrics": {"port": 1, "hold_seconds": 5, "engine_port": 9500}},
        {"price": {"per_gpu_hour": 2.5, "currency": "EUR"}},
        {"output": "elsewhere"},
        {"name": "y"},
    ],
)
def test_what_does_not_shape_outputs_is_not(changes: dict[str, Any]) -> None:
    assert shaped(**changes) == shaped()


def test_settings_that_change_what_is_sampled_are_in_the_fingerprint_and_no_other_of_speculation() -> None:
    lossless = {"method": "ngram", "num_tokens": 2, "args": {"rejection_sample_method": "block"}}
    lossy = {**lossless, "args": {"rejection_sample_method": "synthetic"}}
    plain = output_shaping(parse_spec(raw(), origin="x"))
    assert output_shaping(parse_spec(raw(speculation=lossless), origin="x")) == plain
    assert output_shaping(parse_spec(raw(speculation=lossy), origin="x")) != plain
