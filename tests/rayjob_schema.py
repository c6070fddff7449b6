"""The part of KubeRay's `ray.io/v1` RayJob that deploy/kuberay uses, as a JSON schema.

Written by hand from KubeRay's Go types, its API reference (v1.6) and what its operator validates, since no package on
PyPI ships the CRD. Unknown fields are refused, as the API server's strict validation does. Fields that deploy/kuberay
does not use and that have a structure of their own are left out, and have to be added here first. Pod templates are
only objects here: the published Kubernetes schemas judge them.
"""

from __future__ import annotations

from typing import Any

_COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
_BOOLEAN = {"type": "boolean"}
_STRING = {"type": "string"}
_POD_TEMPLATE = {
    "type": "object",
    "properties": {"metadata": {"type": "object"}, "spec": {"type": "object", "required": ["containers"]}},
    "required": ["spec"],
    "additionalProperties": False,
}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_HEAD = _object(
    {
        "serviceType": {"enum": ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]},
        "enableIngress": _BOOLEAN,
        "rayStartParams": _STRINGS,
        "resources": _STRINGS,
        "labels": _STRINGS,
        "template": _POD_TEMPLATE,
    },
    "template",
)
_WORKERS = _object(
    {
        "groupName": _STRING,
        "replicas": _COUNT,
        "minReplicas": _COUNT,
        "maxReplicas": _COUNT,
        "numOfHosts": {**_COUNT, "minimum": 1},
        "idleTimeoutSeconds": _COUNT,
        "suspend": _BOOLEAN,
        "rayStartParams": _STRINGS,
        "resources": _STRINGS,
        "labels": _STRINGS,
        "template": _POD_TEMPLATE,
    },
    "groupName",
    "minReplicas",
    "maxReplicas",
    "template",
)
_CLUSTER = _object(
    {
        "rayVersion": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
        "authOptions": _object(
            {"mode": {"enum": ["disabled", "token"]}, "secretName": _STRING, "enableK8sTokenAuth": _BOOLEAN}
        ),
        "enableInTreeAutoscaling": _BOOLEAN,
        "headServiceAnnotations": _STRINGS,
        "suspend": _BOOLEAN,
        "headGroupSpec": _HEAD,
        "workerGroupSpecs": {"type": "array", "items": _WORKERS},
    },
    "headGroupSpec",
)
_JOB = _object(
    {
        "entrypoint": _STRING,
        "runtimeEnvYAML": _STRING,
        "jobId": _STRING,
        "metadata": _STRINGS,
        "submissionMode": {"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
        "submitterConfig": _object({"backoffLimit": _COUNT}),
        "submitterPodTemplate": _POD_TEMPLATE,
        "backoffLimit": _COUNT,
        "activeDeadlineSeconds": {**_COUNT, "minimum": 1},
        "shutdownAfterJobFinishes": _BOOLEAN,
        "ttlSecondsAfterFinished": _COUNT,
        "suspend": _BOOLEAN,
        "entrypointNumCpus": {"type": "number"},
        "entrypointNumGpus": {"type": "number"},
        "entrypointResources": _STRING,
        "managedBy": {"enum": ["ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"]},
        "clusterSelector": _STRINGS,
        "rayClusterSpec": _CLUSTER,
    },
    "rayClusterSpec",
)
# A name is a DNS label, and short enough for what KubeRay appends to it.
_METADATA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": r"^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 47}},
    "required": ["name"],
}

RAY_JOB: dict[str, Any] = _object(
    {"apiVersion": {"const": "ray.io/v1"}, "kind": {"const": "RayJob"}, "metadata": _METADATA, "spec": _JOB},
    "apiVersion",
    "kind",
    "metadata",
    "spec",
)
