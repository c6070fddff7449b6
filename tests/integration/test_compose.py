"""Parts of docker-compose.yml that run without containers."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import boto3

from tests.prometheus_server import Programs
from tests.s3_server import S3Server

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def test_the_bucket_is_made_and_may_be_there_already(s3: S3Server) -> None:
    bucket = f"regen-{uuid.uuid4().hex}"
    environment = {**os.environ, "AWS_ENDPOINT_URL_S3": s3.endpoint, "AWS_REGION": "us-east-1"}
    for _ in range(2):
        made = subprocess.run(
            [sys.executable, DEPLOY / "make_bucket.py", bucket],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert made.returncode == 0, made.stderr
    client = boto3.client("s3", endpoint_url=s3.endpoint, region_name="us-east-1")
    client.head_bucket(Bucket=bucket)
    client.delete_bucket(Bucket=bucket)


def test_prometheus_accepts_its_configuration(debian_prometheus: Programs) -> None:
    words: list[str | Path] = [
        debian_prometheus.promtool,
        "check",
        "config",
        "--syntax-only",
        DEPLOY / "prometheus.yml",
    ]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
