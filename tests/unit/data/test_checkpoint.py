"""What a checkpoint's files tell: headers, tables, samples, and what is wrong with each kind of file."""

from __future__ import annotations

import http.server
import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from regen.checkpoints import Checkpoint, FileFault, Tensor
from regen.data.checkpoint import read_checkpoint
from regen.data.model_files import HubFiles, LocalFiles, model_files
from regen.data.vocabulary import read_vocabulary
from tests.heads import Values, eagle3, long_table, weight, whole_model, write_safetensors


def read(folder: Path, **options: Any) -> Checkpoint:
    return read_checkpoint(str(folder), model_files(str(folder)), **options)


def test_a_whole_head_is_read_without_a_problem(tmp_path: Path) -> None:
    found = read(eagle3().write(tmp_path / "head"))
    assert found.problems == ()
    assert found.tensors["fc.weight"] == Tensor("fc.weight", "BF16", (32, 96))
    assert found.integers["d2t"][:3] == (0, 1, 2)
    assert sum(found.integers["t2d"]) == 64
    assert (found.not_finite, found.all_zero) == ((), ())


def test_a_target_of_a_terabyte_is_read_by_its_header(tmp_path: Path) -> None:
    """The file is sparse: reading it all would take hours."""
    shape = (2**20, 2**19)
    header = json.dumps({"w": {"dtype": "BF16", "shape": shape, "data_offsets": [0, 2 * math.prod(shape)]}}).encode()
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2 * math.prod(shape))
    assert read(folder, with_samples=False).tensors["w"].shape == shape
    assert read(folder).all_zero == ("w",)


def test_only_the_shards_of_the_index_count(tmp_path: Path) -> None:
    folder = whole_model().write(tmp_path / "model")
    (folder / "leftover.safetensors").write_bytes(b"")
    names = dict.fromkeys(read(folder).tensors, "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    assert read(folder).problems == ()
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": names | {"extra": "model.safetensors", "other": "gone.safetensors"}})
    )
    problems = {(problem.file, problem.fault) for problem in read(folder).problems}
    assert problems == {("gone.safetensors", FileFault.ABSENT), ("model.safetensors", FileFault.DAMAGED)}
    assert "other" in read(folder, with_headers=False).tensor_names


def test_bytes_after_the_last_tensor_are_damage(tmp_path: Path) -> None:
    folder = eagle3().write(tmp_path / "head")
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"\0")
    (problem,) = read(folder).problems
    assert problem.fault is FileFault.DAMAGED


def test_a_shape_that_its_bytes_do_not_fit_is_damage(tmp_path: Path) -> None:
    folder = eagle3().write(tmp_path / "head")
    write_safetensors(folder / "model.safetensors", {"w": Values("BF16", (5,), bytes(8))})
    (problem,) = read(folder).problems
    assert problem.fault is FileFault.DAMAGED


def test_one_nan_anywhere_in_a_small_checkpoint_is_seen(tmp_path: Path) -> None:
    folder = eagle3().write(tmp_path / "head")
    rows = 2**17
    numbers = bytearray(b"\x80\x3c" * (rows * 32))
    numbers[2 * 32 * 40_000 : 2 * 32 * 40_000 + 2] = b"\xc0\x7f"
    write_safetensors(folder / "model.safetensors", {"w": Values("BF16", (rows, 32), bytes(numbers))})
    assert read(folder).not_finite == ("w",)


def test_a_link_that_leads_nowhere_is_an_absent_file(tmp_path: Path) -> None:
    folder = eagle3().write(tmp_path / "head")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    (problem,) = read(folder).problems
    assert (problem.file, problem.fault) == ("model.safetensors", FileFault.ABSENT)


def test_a_pytorch_file_is_read_without_pytorch_and_runs_no_code(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    folder = eagle3().write(tmp_path / "head")
    (folder / "model.safetensors").unlink()
    weights = torch.ones(4, 6, dtype=torch.bfloat16)
    weights[2, 3] = math.nan
    table = torch.tensor([3, 5, 8])
    torch.save({"fc.weight": weights, "d2t": table, "view": weights[1:]}, folder / "pytorch_model.bin")
    found = read(folder)
    assert found.problems == ()
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in found.tensors.items()} == {
        "fc.weight": ("BF16", (4, 6)),
        "d2t": ("I64", (3,)),
        "view": ("BF16", (3, 6)),
    }
    assert found.integers["d2t"] == (3, 5, 8)
    assert set(found.not_finite) == {"fc.weight", "view"}
    torch.save({"x": Path("/")}, folder / "pytorch_model.bin")
    found = read(folder)
    assert (found.problems[0].fault, found.has_unread_weights) == (FileFault.UNREADABLE, True)
    whole = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(whole[: len(whole) // 2])
    assert read(folder).problems[0].fault is FileFault.TRUNCATED


def test_vocabularies_of_three_kinds_of_files(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    assert read_vocabulary(files) is None
    (tmp_path / "tiktoken.model").write_text("YQ== 0\nYg== 1\n")
    found = read_vocabulary(files)
    assert found is not None
    assert found.tokens == {"YQ==": 0, "Yg==": 1}
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "c": 2}')
    found = read_vocabulary(files)
    assert found is not None
    assert found.size == 3
    unigram = {"model": {"vocab": [["<s>", 0.0], ["a", -1.5]]}, "added_tokens": [{"content": "<s>", "id": 0}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(unigram))
    found = read_vocabulary(files)
    assert found is not None
    assert (found.tokens, found.added) == ({"a": 1}, {"<s>": 0})


class _Hub(http.server.BaseHTTPRequestHandler):
    """Serves ranges of one folder, as the hub does, and counts the bytes."""

    folder: ClassVar[Path]
    sent: ClassVar[int] = 0

    def do_GET(self) -> None:
        data = (self.folder / self.path.rpartition("/")[2]).read_bytes()
        first, last = (int(part) for part in self.headers["range"].removeprefix("bytes=").split("-"))
        piece = data[first : last + 1]
        type(self).sent += len(piece)
        self.send_response(206)
        self.send_header("content-length", str(len(piece)))
        self.end_headers()
        self.wfile.write(piece)

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def hub(folder: Path) -> Iterator[str]:
    _Hub.folder, _Hub.sent = folder, 0
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_on_the_hub_only_ranges_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    head = eagle3()
    head.tensors["embed_tokens.weight"] = weight(2**16, 32)
    head.tensors["d2t"] = long_table(list(range(64)))
    folder = head.write(tmp_path / "head")
    with hub(folder) as url:
        monkeypatch.setattr(
            huggingface_hub, "hf_hub_url", lambda name, file, revision: f"{url}/{name}/{revision}/{file}"
        )
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        huggingface_hub.close_session()
        files = HubFiles("an/eagle3", "c0ffee", {path.name: path.stat().st_size for path in folder.iterdir()})
        found = read_checkpoint("an/eagle3", files, with_samples=False)
        sent = _Hub.sent
    huggingface_hub.close_session()
    assert found == read_checkpoint("an/eagle3", LocalFiles(folder), with_samples=False)
    assert sent < 20_000
