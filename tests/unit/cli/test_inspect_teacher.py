import json
import re
from dataclasses import replace

import numpy as np
import pytest

from megapack.cli import main as cli
from megapack.records.document import labels_digest
from megapack.records.payload import PayloadDtype, PayloadKind, TeacherPayload
from megapack.steps.inspect.shown import segment_of_row
from megapack.steps.inspect.teacher import labels_of
from megapack.steps.prepare import prepare
from megapack.store.lm_head import lm_head_info, write_lm_head
from megapack.store.location import open_location
from megapack.store.manifest import Contents, Split
from megapack.store.payload_parts import payload_counts, write_payload_parts
from megapack.store.payload_vocabulary import write_vocabulary
from megapack.store.reader import open_dataset
from megapack.store.schema import KindInfo, PayloadInfo
from megapack.store.versions import commit
from tests.support.prepare_jobs import plain_line, prepare_job

TOPK = KindInfo(kind=PayloadKind.TOPK, dtype=PayloadDtype.FP32, width=2)
INFO = PayloadInfo(
    kinds=(TOPK,), temperature=2.0, vocab_size=64, tokenizer_digest="d" * 64, teachers=("big",)
)


def payload_of(document):
    """The teacher gives each label 3/4, and token 0 most of the rest."""
    size = document.tokens.size
    labels = labels_of(document, size)
    indices = np.stack([np.where(labels >= 0, labels, 1), np.zeros(size)], axis=1)
    values = np.log(np.tile([0.75, 0.125], (size, 1))).astype(np.float32)
    return TeacherPayload(
        document_id=document.document_id,
        teacher=0,
        kind=PayloadKind.TOPK,
        dtype=PayloadDtype.FP32,
        values=values,
        indices=indices.astype(np.int32),
        tail_logprobs=np.log(np.full(size, 0.125, np.float32)),
        target_logprobs=np.where(labels >= 0, values[:, 0], np.nan).astype(np.float32),
        labels_digest=labels_digest(document.tokens, labels),
    )


def published(uri, payloads, *, info=INFO, files=()):
    parts = (*write_payload_parts(open_location(uri), payloads, info=info), *files)
    contents = Contents(
        schema_id="", kind="payload", parts=parts, counts=payload_counts(parts), payload=info
    )
    return commit(uri, contents.manifest()).uri


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A dataset of six conversations, its documents, and the payload of all of them."""
    folder = tmp_path_factory.mktemp("made")
    source = folder / "chats.jsonl"
    source.write_text("".join(f"{plain_line(number)}\n" for number in range(6)), encoding="utf-8")
    job = prepare_job(folder, source, validation_fraction=0.0, pack={"row_length": 32})
    ref = prepare(job).dataset
    with open_dataset(ref.uri) as dataset:
        documents = [
            segment_of_row(row, at)
            for row in dataset.rows(Split.TRAIN, range(ref.num_rows))
            for at in range(row.layout.num_segments)
        ]
    payloads = [payload_of(one) for one in documents]
    return ref.uri, documents, published(str(folder / "payload"), payloads)


def inspected(capsys, *arguments, code=0):
    assert cli.main(["inspect", *map(str, arguments)]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def test_each_token_stands_with_what_the_teacher_expected(made, capsys):
    uri, documents, payload = made
    document = documents[0]
    text = inspected(capsys, uri, "--document", document.document_id, "--teacher", payload)
    assert "top-2 at temperature 2" in text
    lines = re.findall(r"^ +(\d+) (.+)$", text, re.M)
    assert [int(number) for number, _ in lines] == list(range(document.tokens.size))
    assert lines[0][1].endswith("first token")
    for (_, line), trained in list(zip(lines, document.trained, strict=True))[1:]:
        assert ("«" in line) == trained
        assert line.endswith("| rest 12.50%")
        if trained:
            word = re.match(r'«(".*?")»', line)[1]
            assert re.search(rf"75\.00% \| {re.escape(word)} 75\.00%  \S+ 12\.50% \|", line)
    assert any("not in top-k" in line for _, line in lines)


def test_html_page_tells_it_under_the_pointer(made, tmp_path, capsys):
    uri, documents, payload = made
    path = tmp_path / "look.html"
    inspected(capsys, uri, "--sample", 50, "--teacher", payload, "--html", path)
    text = path.read_text(encoding="utf-8")
    found = re.findall(r'data-teacher="([^"]*)"', text)
    assert len(found) == len(documents)
    told = json.loads(found[0].replace("&quot;", '"').replace("&#x27;", "'").replace("&lt;", "<")
                      .replace("&gt;", ">").replace("&amp;", "&"))  # fmt: skip
    assert told[0] == ""
    assert all(one.endswith("rest 12.50%") for one in told[1:])


def test_what_a_teacher_cannot_say_is_one_line(made, tmp_path, capsys):
    uri, documents, payload = made
    wanted = documents[0].document_id
    other = published(str(tmp_path / "other"), [payload_of(documents[1])])
    told = inspected(capsys, uri, "--document", wanted, "--teacher", other, code=2)
    assert f"expected the teacher's payload of document {wanted}, found none" in told
    changed = replace(payload_of(documents[0]), labels_digest=1)
    wrong = published(str(tmp_path / "wrong"), [changed])
    told = inspected(capsys, uri, "--document", wanted, "--teacher", wrong, code=2)
    assert f"document {wanted}: expected a payload of its" in told
    alone = INFO.model_copy(
        update={"kinds": (KindInfo(kind=PayloadKind.LOGPROBS, dtype=PayloadDtype.FP32, width=0),)}
    )
    bare = published(str(tmp_path / "bare"), [], info=alone)
    told = inspected(capsys, uri, "--document", wanted, "--teacher", bare, code=2)
    assert "expected a payload of kind topk, found logprobs" in told
    told = inspected(capsys, payload, "--document", wanted, code=2)
    assert "expected packed rows for --rows" in told


def test_payload_alone_says_what_it_holds(made, tmp_path, capsys):
    _, documents, _ = made
    uri = str(tmp_path / "payload")
    location = open_location(uri)
    head = write_lm_head(location, [np.ones((64, 8), "<u2")], PayloadDtype.BF16)
    info = INFO.model_copy(update={"lm_heads": {0: lm_head_info(head, PayloadDtype.BF16)}})
    files = (*head, write_vocabulary(location, {"a": 0, "b": 1}))
    published(uri, [payload_of(one) for one in documents], info=info, files=files)
    text = inspected(capsys, uri)
    positions = sum(one.tokens.size for one in documents)
    assert f"{len(documents)} documents, {positions} positions" in text
    assert re.search(r"topk: 2 fp32 a position, [\d.]+ KiB in 1 part, [\d.,]+ bytes a posi", text)
    assert "temperature 2, vocabulary of 64" in text
    assert "LM head 64 x 8 bf16, 1.0 KiB, digest" in text
    assert "2 tokens published" in text
