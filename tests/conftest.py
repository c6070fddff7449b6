"""What every test runs under, whatever the shell had: offline, no usage statistics, no cluster but its own.

Set before anything imports Ray, vLLM or transformers, and inherited by every process that a test starts.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser import Browser, NoBrowser, headless
from tests.chaos.ray_cluster import RayHead
from tests.prometheus_server import NoPrometheus, Programs, programs
from tests.s3_server import KEYS, S3Server, s3_server
from tests.trainers import NotInstallable, trainer_environment

REPOSITORY = Path(__file__).resolve().parent.parent

os.environ.pop("RAY_ADDRESS", None)  # or a test would join a cluster that somebody works on
os.environ.update(
    HF_HUB_OFFLINE="1",
    # One mode for all that tests start, and a token of their own: none is written to the home folder.
    RAY_AUTH_MODE="token",
    RAY_AUTH_TOKEN=secrets.token_hex(32),
    RAY_USAGE_STATS_ENABLED="0",
    RAY_worker_niceness="0",  # by 15 as it is: on a busy machine tests would wait for Ray's workers for minutes
    TOKENIZERS_PARALLELISM="false",
    VLLM_NO_USAGE_STATS="1",
)


# No account of whoever runs the tests, and no look at what a cloud's machine would lend them.
if "REGEN_TEST_S3_ENDPOINT" not in os.environ:
    for variable in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[variable]
    os.environ.update(KEYS)
    os.environ.update(AWS_CONFIG_FILE=os.devnull, AWS_SHARED_CREDENTIALS_FILE=os.devnull)
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"


@pytest.fixture(scope="session", autouse=True)
def _no_disk_is_waited_for() -> Iterator[None]:
    """No test loses power: what a killed process has written is there without `fsync`, which takes 2 to 20 ms a file.

    In the tests' own process; commands that they start do wait.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """A server that speaks S3 (tests/s3_server.py)."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def ray_head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayHead]:
    """A Ray cluster that many tests share: what a test starts there it has ended before the next one begins."""
    cluster = RayHead(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.end()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, as `make model` builds it; REGEN_TEST_MODEL names another folder.

    CI must have it. Elsewhere its tests are skipped without it, and the summary says so.
    """
    folder = Path(os.environ.get("REGEN_TEST_MODEL", REPOSITORY / ".models" / "smollm2"))
    if not (folder / "model.safetensors").exists():
        message = f"{folder} is not there: `make model` builds it"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return folder


@pytest.fixture(scope="session")
def shared_prompts() -> Path:
    """Real prompt files of public benchmarks that lie beside the checkout on some machines; skipped without."""
    folder = REPOSITORY.parent / "shared" / "data" / "prompts"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    return folder


@pytest.fixture(scope="session")
def trainer() -> Callable[[str], Path]:
    """A trainer's environment by name (tests/trainers.py). CI must get it; elsewhere tests are skipped without."""

    def environment(name: str) -> Path:
        try:
            return trainer_environment(name)
        except NotInstallable as error:
            if os.environ.get("CI"):
                pytest.fail(str(error))
            pytest.skip(str(error))

    return environment


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium (tests/browser.py). CI must have it; elsewhere its tests are skipped without it."""
    try:
        with headless() as one:
            yield one
    except NoBrowser as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def debian_prometheus() -> Programs:
    """A real Prometheus (tests/prometheus_server.py). CI must get it; elsewhere its tests are skipped without."""
    try:
        return programs()
    except NoPrometheus as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def head() -> Path:
    """A trained EAGLE-3 head for SmolLM2 that lies beside the checkout on some machines; skipped without."""
    folder = REPOSITORY.parent / "shared" / "data" / "heads" / "smollm2-eagle3"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    return folder
