"""deploy/kuberay: every manifest against its schema, and rules of our own. No cluster is asked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from regen import __version__
from regen.errors import ExitCode
from regen.run.cluster import DRAIN_SECONDS, DRAIN_SECONDS_VARIABLE, JOB_STOP_SECONDS
from regen.run.driver import LEAVE_SECONDS
from regen.run.fleet.fit import Evidence, Node, Questions, demand_of, fit
from regen.spec import RunSpec, parse_spec
from tests.chaos.ray_cluster import REPLICA
from tests.rayjob_schema import RAY_JOB

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kuberay"
KUBERNETES = "1.37"
VARIANTS = ("cpu", "gpu")
SECRET_WORDS = re.compile("key|secret|token|password|credential", re.IGNORECASE)
variants = pytest.mark.parametrize("variant", VARIANTS)


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


ALL = [(path.name, document) for path in sorted(FOLDER.glob("*.yaml")) for document in documents(path.name)]
NAMES = [f"{file}:{document['kind']}/{document['metadata']['name']}" for file, document in ALL]
every = pytest.mark.parametrize("document", [document for _, document in ALL], ids=NAMES)


def one(kind: str, file: str) -> dict[str, Any]:
    (found,) = (document for name, document in ALL if name == file and document["kind"] == kind)
    return found


def job(variant: str) -> dict[str, Any]:
    spec: dict[str, Any] = one("RayJob", f"rayjob-{variant}.yaml")["spec"]
    return spec


def groups(variant: str) -> list[dict[str, Any]]:
    cluster = job(variant)["rayClusterSpec"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def pods(variant: str) -> list[dict[str, Any]]:
    return [group["template"]["spec"] for group in groups(variant)]


def containers(variant: str) -> list[dict[str, Any]]:
    return [container for pod in pods(variant) for container in pod["containers"]]


def run_spec(variant: str) -> RunSpec:
    text = one("ConfigMap", f"rayjob-{variant}.yaml")["data"]["spec.yaml"]
    return parse_spec(yaml.safe_load(text), f"rayjob-{variant}.yaml")


def scripts() -> dict[str, str]:
    data: dict[str, str] = one("ConfigMap", "common.yaml")["data"]
    return data


# --- schemas ---------------------------------------------------------------------------------------


@every
def test_every_object_is_what_its_schema_says(document: dict[str, Any]) -> None:
    if document["kind"] != "RayJob":
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
        return
    jsonschema.validate(document, RAY_JOB)
    cluster = document["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **group["template"].get("metadata", {})}}
        kubernetes_validate.validate({**pod, "spec": group["template"]["spec"]}, KUBERNETES, strict=True)


def test_the_schemas_refuse_a_misspelt_field() -> None:
    """Or they would be checked against nothing."""
    document = json.loads(json.dumps(one("RayJob", "rayjob-cpu.yaml")))
    document["spec"]["backofLimit"] = document["spec"].pop("backoffLimit")
    with pytest.raises(jsonschema.ValidationError, match="backofLimit"):
        jsonschema.validate(document, RAY_JOB)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [], "gracePeriod": 1}}
    with pytest.raises(kubernetes_validate.ValidationError, match="gracePeriod"):
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_manifests_do_without_what_only_some_yaml_readers_do() -> None:
    for path in FOLDER.glob("*.yaml"):
        assert not re.search(r"(: |- )[&*]\w|<<:", path.read_text(encoding="utf-8")), path.name


# --- rules of our own ------------------------------------------------------------------------------


@every
def test_no_secret_is_in_a_manifest(document: dict[str, Any]) -> None:
    """Only references: no Secret object, no variable with such a name and a value."""
    assert document["kind"] != "Secret"
    assert document["metadata"]["namespace" if document["kind"] != "Namespace" else "name"] == "regen"

    def look(value: Any) -> None:
        if isinstance(value, dict):
            assert not (SECRET_WORDS.search(str(value.get("name", ""))) and "value" in value), value
            for part in value.values():
                look(part)
        elif isinstance(value, list):
            for part in value:
                look(part)
        elif isinstance(value, str):
            assert not re.search(r"AKIA[0-9A-Z]{16}|hf_[A-Za-z0-9]{20,}|-----BEGIN", value)

    look(document)


@variants
def test_the_jobs_environment_is_shown_in_clear_and_holds_no_secret(variant: str) -> None:
    environment = yaml.safe_load(job(variant)["runtimeEnvYAML"])
    assert set(environment) == {"env_vars"}
    assert set(environment["env_vars"]) == {"RAY_JOB_STOP_WAIT_TIME_S", DRAIN_SECONDS_VARIABLE}


@variants
def test_only_the_head_has_the_keys_of_the_store(variant: str) -> None:
    head, *workers = containers(variant)
    assert {"secretRef": {"name": "regen-store"}} in head["envFrom"]
    assert all("regen-store" not in json.dumps(worker) for worker in workers)


@variants
def test_images_have_a_version_and_are_of_this_one(variant: str) -> None:
    assert {container["image"] for container in containers(variant)} == {
        f"registry.example.com/regen:{__version__}-{variant}"
    }


@variants
def test_nothing_is_reached_from_outside(variant: str) -> None:
    head = job(variant)["rayClusterSpec"]["headGroupSpec"]
    assert head["serviceType"] == "ClusterIP"
    assert head["enableIngress"] is False
    for pod in pods(variant):
        assert not pod.get("hostNetwork")
    for container in containers(variant):
        assert not [port for port in container.get("ports", ()) if "hostPort" in port]
    assert run_spec(variant).metrics.host == "127.0.0.1"


def test_the_network_policy_lets_in_the_namespace_itself_and_the_operator_alone() -> None:
    policy = one("NetworkPolicy", "common.yaml")["spec"]
    assert policy["podSelector"] == {}
    assert policy["policyTypes"] == ["Ingress"]
    inside, operator = policy["ingress"]
    assert inside == {"from": [{"podSelector": {}}]}
    assert operator["ports"] == [{"protocol": "TCP", "port": 8265}]
    assert set(operator["from"][0]) == {"namespaceSelector"}


@variants
def test_ray_asks_for_its_token(variant: str) -> None:
    cluster = job(variant)["rayClusterSpec"]
    assert cluster["authOptions"]["mode"] == "token"
    assert tuple(map(int, cluster["rayVersion"].split(".")))[:2] >= (2, 52), "before, KubeRay refuses authOptions"


@variants
def test_every_pod_runs_with_as_little_as_it_can(variant: str) -> None:
    for pod in pods(variant):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert f"--uid {pod['securityContext']['runAsUser']} " in (ROOT / "deploy" / "Dockerfile").read_text()
        assert pod["automountServiceAccountToken"] is False
    for container in containers(variant):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert set(container["resources"]) == {"requests", "limits"}
        assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)


@variants
def test_every_retry_goes_on_in_the_same_run_folder(variant: str) -> None:
    """A retry is a new cluster: what is not in the store is gone. It may not wait for a person, nor fence itself."""
    assert job(variant)["backoffLimit"] >= 1
    output = run_spec(variant).output
    assert re.fullmatch(r"s3://[a-z0-9/-]+", output), "fixed text, outside of the cluster"
    assert run_spec(variant).limits.hours is None, "ending by itself is a failure to KubeRay, and would be retried"
    assert job(variant)["entrypoint"] == f"sh /etc/regen/scripts/run.sh {job(variant)['jobId']}"
    assert "regen run /etc/regen/spec/spec.yaml --allow-rejects" in scripts()["run.sh"]
    assert "--take-over" not in json.dumps(job(variant)) + scripts()["run.sh"]


@variants
def test_kuberay_may_suspend_the_job(variant: str) -> None:
    assert job(variant)["shutdownAfterJobFinishes"] is True


@variants
def test_there_is_time_for_the_drain_before_sigterm_and_before_sigkill(variant: str) -> None:
    environment = yaml.safe_load(job(variant)["runtimeEnvYAML"])["env_vars"]
    assert float(environment[DRAIN_SECONDS_VARIABLE]) == DRAIN_SECONDS
    assert float(environment["RAY_JOB_STOP_WAIT_TIME_S"]) == JOB_STOP_SECONDS
    head, *workers = containers(variant)
    assert head["lifecycle"]["preStop"]["exec"]["command"] == ["sh", "/etc/regen/scripts/drain.sh"]
    for worker in workers:
        assert worker["lifecycle"]["preStop"]["exec"]["command"] == ["sh", "/etc/regen/scripts/wait.sh"]
    for name in ("drain.sh", "wait.sh"):
        (seconds,) = (int(found) for found in re.findall(r"-lt (\d+)", scripts()[name]))
        assert seconds > DRAIN_SECONDS + LEAVE_SECONDS
        assert all(seconds + 30 <= pod["terminationGracePeriodSeconds"] for pod in pods(variant))


@variants
def test_what_is_mounted_is_there(variant: str) -> None:
    maps = {document["metadata"]["name"] for _, document in ALL if document["kind"] == "ConfigMap"}
    claims = {document["metadata"]["name"] for _, document in ALL if document["kind"] == "PersistentVolumeClaim"}
    for pod in pods(variant):
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume} <= maps
        named = {
            volume["persistentVolumeClaim"]["claimName"] for volume in volumes.values() if "persist" in str(volume)
        }
        assert named <= claims
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted == set(volumes)


@variants
def test_the_spec_fits_the_cluster_that_the_manifest_asks_for(variant: str) -> None:
    """As `regen check` sees it, and with nothing left over."""
    demand = demand_of(run_spec(variant))
    nodes = [Node("head", 0, 0, is_head=True)]
    for group in job(variant)["rayClusterSpec"]["workerGroupSpecs"]:
        assert group["minReplicas"] == group["replicas"] == group["maxReplicas"]
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        node = Node("worker", float(limits["cpu"]), float(limits.get("nvidia.com/gpu", 0)))
        nodes += [node] * int(group["replicas"])
    cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    evidence = Evidence(demand, Questions((), (), (), ()), nodes, cpus, gpus)
    assert [finding.code for finding in fit(evidence) if finding.code != "node-silent"] == []
    assert demand.fewest * demand.gpus == gpus


@variants
def test_what_the_spec_names_is_in_the_image_or_mounted(variant: str) -> None:
    spec = run_spec(variant)
    assert spec.target.model.startswith("/models/")
    for source in spec.sources:
        assert (ROOT / Path(source.path).relative_to("/opt/regen")).exists()


# --- the scripts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run.sh", "drain.sh", "wait.sh"])
def test_scripts_are_those_of_a_plain_shell(name: str) -> None:
    assert subprocess.run(["sh", "-n"], input=scripts()[name], text=True, check=False).returncode == 0


def drain(folder: Path) -> subprocess.Popen[bytes]:
    (folder / "drain.sh").write_text(scripts()["drain.sh"])
    return subprocess.Popen(["sh", "drain.sh"], cwd=folder, env={"REGEN_PID_FILE": "pid", "PATH": "/bin:/usr/bin"})


def test_draining_tells_the_driver_once_and_waits_for_its_end(tmp_path: Path) -> None:
    """The driver is a stand-in: after SIGTERM it goes on until its input ends, and it counts."""
    program = (
        "import signal, sys\n"
        "heard = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: (heard.append(1), print('heard', flush=True)))\n"
        "print('up', flush=True)\n"
        "sys.stdin.read()\n"
        "sys.exit(9 if len(heard) == 1 else 1)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdin is not None
        assert driver.stdout.readline() == "up\n"
        (tmp_path / "pid").write_text(f"{driver.pid}\n")
        with drain(tmp_path) as draining:
            assert driver.stdout.readline() == "heard\n"
            with pytest.raises(subprocess.TimeoutExpired):
                draining.wait(timeout=0.3)
            driver.stdin.close()
            assert driver.wait(timeout=20) == 9
            assert draining.wait(timeout=20) == 0


def test_with_no_driver_there_is_nothing_to_wait_for(tmp_path: Path) -> None:
    with drain(tmp_path) as draining:
        assert draining.wait(timeout=20) == 0
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "pid").write_text(f"{ended.pid}\n")
    with drain(tmp_path) as draining:
        assert draining.wait(timeout=20) == 0


def test_a_workers_pod_waits_while_a_replica_is_in_it(tmp_path: Path) -> None:
    """`pgrep` is a stand-in that finds it three times, and `sleep` one that does not."""
    (tmp_path / "pgrep").write_text('#!/bin/sh\necho "$@" >> asked\n[ "$(wc -l < asked)" -le 3 ]\n')
    (tmp_path / "sleep").write_text("#!/bin/sh\n")
    for name in ("pgrep", "sleep"):
        (tmp_path / name).chmod(0o755)
    (tmp_path / "wait.sh").write_text(scripts()["wait.sh"])
    subprocess.run(["sh", "wait.sh"], cwd=tmp_path, env={"PATH": f"{tmp_path}:/bin:/usr/bin"}, check=True, timeout=20)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == 4
    pattern = asked[0].removeprefix("-f ")
    assert re.search(pattern, f"{REPLICA}.run")
    assert not re.search(pattern, scripts()["wait.sh"]), "or it would find the shell that runs it"


def program(path: Path, *lines: str) -> None:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


def runs(folder: Path, *driver: str) -> subprocess.Popen[str]:
    """run.sh with stand-ins: a driver of these lines for `python`, and a `ray` and a `sleep` that write down."""
    program(folder / "python", 'echo "$$" "$@"', *driver)
    program(folder / "ray", 'echo "$@" > stopped')
    program(folder / "sleep", 'echo "$@" > slept')
    (folder / "run.sh").write_text(scripts()["run.sh"])
    return subprocess.Popen(
        ["sh", "run.sh", "regen-cpu"],
        cwd=folder,
        env={"REGEN_PID_FILE": "pid", "PATH": f"{folder}:/bin:/usr/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


# Why each of the others is: what was lost comes back on a new cluster, a store or an engine may, and one who holds the
# folder may be the cluster before, which is still being deleted.
NOT_RETRIED = {
    ExitCode.USAGE,
    ExitCode.PREFLIGHT,
    ExitCode.DRIFT,
    ExitCode.DAMAGED,
    ExitCode.SPECULATION,
}


@pytest.mark.parametrize("code", [*ExitCode, 137, 143])
def test_what_a_new_cluster_would_not_mend_is_not_retried(tmp_path: Path, code: int) -> None:
    """A job that fails is retried. One that is stopped is not: for that, it must still be running."""
    with runs(tmp_path, f"exit {int(code)}") as job:
        said, _ = job.communicate(timeout=20)
    assert job.returncode == code, "the shell hides none"
    assert said.split()[1:4] == ["-m", "regen", "run"]
    assert (tmp_path / "stopped").exists() is (tmp_path / "slept").exists() is (code in NOT_RETRIED)
    if code in NOT_RETRIED:
        assert (tmp_path / "stopped").read_text().split() == [
            *("job", "stop", "--no-wait", "--address", "http://127.0.0.1:8265", "regen-cpu")
        ]


def test_a_job_that_could_not_be_stopped_fails(tmp_path: Path) -> None:
    with runs(tmp_path, 'printf "#!/bin/sh\\nexit 1\\n" > ray', "exit 3") as job:
        assert job.wait(timeout=20) == 3
    assert not (tmp_path / "slept").exists()


def test_the_driver_is_the_process_whose_number_is_written_and_the_shell_outlives_it(tmp_path: Path) -> None:
    """SIGTERM reaches both, as `ray job stop` sends it. With the shell gone, Ray would take the job for ended."""
    with runs(tmp_path, "trap 'exit 9' TERM", "echo up", "while :; do /bin/sleep 0.05; done") as job:
        assert job.stdout is not None
        number = job.stdout.readline().split()[0]
        assert job.stdout.readline() == "up\n"
        assert number == (tmp_path / "pid").read_text().strip()
        job.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            job.wait(timeout=0.3)
        with drain(tmp_path) as draining:
            assert job.wait(timeout=20) == 9
            assert draining.wait(timeout=20) == 0
    assert not (tmp_path / "stopped").exists()
