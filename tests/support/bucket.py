"""S3 server on 127.0.0.1: moto's server in a separate process."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

BUCKET = "checkpoints"
ACCESS_KEY, SECRET_KEY = "AKIDEXAMPLE", "wJalrXUtnFEMI-example"


@dataclass(frozen=True)
class Bucket:
    """A bucket and its endpoint."""

    endpoint_url: str

    @property
    def config(self) -> dict[str, Any]:
        """The group ``checkpoint_storage`` with its secrets."""
        return {
            "type": "s3", "bucket": BUCKET, "prefix": "runs", "endpoint_url": self.endpoint_url,
            "access_key": ACCESS_KEY, "secret_key": SECRET_KEY,
        }  # fmt: skip

    def objects(self, below: str = "") -> list[str]:
        """Return the keys of all objects below a prefix."""
        import boto3

        client = boto3.client(
            "s3", endpoint_url=self.endpoint_url, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
        )  # fmt: skip
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=below)
        return [one["Key"] for page in pages for one in page.get("Contents", ())]


@contextmanager
def s3_server() -> Iterator[Bucket]:
    """Yield a bucket of a server that runs until the end of the block."""
    code = (
        "from moto.server import ThreadedMotoServer as S\n"
        "s = S(ip_address='127.0.0.1', port=0); s.start()\n"
        "print('port', s.get_host_and_port()[1], flush=True)\n"
        "import sys; sys.stdin.read()\n"  # Ends with this process.
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    try:
        # The server prints a line of its own first.
        found = next(filter(None, (re.match(r"port (\d+)", line) for line in process.stdout or ())), None)
        assert found, "moto's server did not start"
        bucket = Bucket(f"http://127.0.0.1:{found[1]}")
        import boto3

        boto3.client(
            "s3", endpoint_url=bucket.endpoint_url, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
        ).create_bucket(Bucket=BUCKET)  # fmt: skip
        yield bucket
    finally:
        process.terminate()
        process.wait(10)
