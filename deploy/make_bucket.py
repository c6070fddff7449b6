"""Makes the bucket that docker-compose.yml stores runs in, if it is not there: `python make_bucket.py BUCKET`.

The store and the keys come from the environment, as boto3 reads it (AWS_ENDPOINT_URL_S3, AWS_ACCESS_KEY_ID, ...).
"""

from __future__ import annotations

import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError


def main() -> int:
    bucket = sys.argv[1]
    client = boto3.client("s3", config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 10}))
    try:
        client.create_bucket(Bucket=bucket)
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
            raise
    print(f"bucket {bucket}: there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
