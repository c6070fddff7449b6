"""What is written down of a scheduler's steps; the scheduler is a stand-in with vLLM's names."""

from types import SimpleNamespace

from benchmarks.peers.cutting import parse_log
from benchmarks.peers.engine_log import StepLog, environment, wrap


def stand_in():
    """A class of schedulers that gives out the steps it is told."""

    class Scheduler:
        def __init__(self):
            self.waiting: list[object] = []
            self.running: list[str] = []

        def add_request(self, request):
            self.waiting.append(request)

        def update_from_output(self, scheduled, sampled):
            return sampled

    return Scheduler


def scheduled(sequences, *new):
    return SimpleNamespace(num_scheduled_tokens=dict.fromkeys(sequences, 1), scheduled_new_reqs=list(new))


def new(request_id, prompt, cached):
    return SimpleNamespace(req_id=request_id, prompt_token_ids=prompt, num_computed_tokens=cached)


def sampled(*outputs):
    return {
        0: SimpleNamespace(
            outputs=[SimpleNamespace(request_id=i, new_token_ids=t, finish_reason=r) for i, t, r in outputs]
        )
    }


def written(folder):
    return parse_log(line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines())


def test_steps_and_finished_requests_are_written_when_nothing_runs_any_more(tmp_path):
    kind = stand_in()
    wrap(kind, StepLog(tmp_path))
    scheduler = kind()
    scheduler.add_request(SimpleNamespace(request_id="a"))
    scheduler.running = ["a", "b"]
    scheduler.update_from_output(
        scheduled("ab", new("a", [5, 6], 1), new("b", [7], 0)), sampled(("a", [1], None), ("b", [2], None))
    )
    scheduler.running = []
    scheduler.update_from_output(scheduled("ab"), sampled(("a", [3], "stop"), ("b", [4], "length")))
    found = written(tmp_path)
    assert [(step.tokens, step.sequences, step.waiting) for step in found.steps] == [(2, 2, 1), (2, 2, 1)]
    assert [(one.prompt, one.completion, one.cached_tokens) for one in found.requests] == [
        ((5, 6), (1, 3), 1),
        ((7,), (2, 4), 0),
    ]
    first = found.requests[0]
    assert first.came_at <= first.scheduled_at == found.steps[0].ended_at
    assert first.finished_at == found.steps[1].ended_at


def test_the_scheduler_still_does_its_own_work(tmp_path):
    kind = stand_in()
    wrap(kind, StepLog(tmp_path))
    scheduler, request, made = kind(), SimpleNamespace(request_id="a"), sampled()
    scheduler.add_request(request)
    assert scheduler.waiting == [request]
    assert scheduler.update_from_output(scheduled("a"), made) is made


def test_a_step_without_sequences_is_none(tmp_path):
    kind = stand_in()
    wrap(kind, StepLog(tmp_path))
    kind().update_from_output(scheduled(""), {})
    assert written(tmp_path).steps == ()


def test_vllm_finds_the_plugin_on_the_path(tmp_path):
    from importlib.metadata import distributions

    paths = environment(tmp_path / "plugin", tmp_path / "log")["PYTHONPATH"].split(":")
    (found,) = [point for package in distributions(path=paths[:1]) for point in package.entry_points]
    assert (found.group, found.value) == ("vllm.general_plugins", "benchmarks.peers.engine_log:install")
    assert found.load().__name__ == "install"
