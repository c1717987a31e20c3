"""The command on a real object store: from a file on S3 to a dataset that can be looked at."""

import os
import subprocess
import sys

import pytest
import s3fs

from tests.support.prepare_jobs import WORDS, plain_line
from tests.support.s3_server import BUCKET, s3_server
from tests.support.toy_tokenizers import MARKED_TEMPLATE, save_tokenizer, words_tokenizer


@pytest.mark.flow
@pytest.mark.timeout(200)
def test_plan_prepare_inspect_and_report_on_s3(tmp_path):
    tokenizer = save_tokenizer(words_tokenizer(WORDS), tmp_path / "tok", template=MARKED_TEMPLATE)
    with s3_server(tmp_path / "s3") as variables:
        environment = os.environ | variables | {"AWS_ALLOW_HTTP": "true"}

        def megapack(*arguments):
            done = subprocess.run(
                [sys.executable, "-m", "megapack.cli", *arguments],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        filesystem = s3fs.S3FileSystem(
            key=variables["AWS_ACCESS_KEY_ID"],
            secret=variables["AWS_SECRET_ACCESS_KEY"],
            endpoint_url=variables["AWS_ENDPOINT_URL"],
            skip_instance_cache=True,
        )
        source, store = f"s3://{BUCKET}/in/chats.jsonl", f"s3://{BUCKET}/out"
        lines = "".join(f"{plain_line(number)}\n" for number in range(30)) + "no json\n"
        filesystem.pipe(source, lines.encode())
        flags = ["--source", source, "--tokenizer", tokenizer, "--row-length", "32"]
        flags += ["--long-documents", "drop"]
        assert "documents  30" in megapack("plan", *flags)
        assert not filesystem.exists(store)
        assert "unreadable: 1" in megapack("prepare", *flags, "--store", store)
        assert "\u00ab w" in megapack("inspect", store)
        assert "    no json\n" in megapack("inspect", store, "--drops")
        page = tmp_path / "report.html"
        megapack("report", store, "--html", str(page))
        assert "How full rows are" in page.read_text(encoding="utf-8")
        assert "violations=0" in megapack("audit", store)
