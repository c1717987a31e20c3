"""Ends of documents in packed rows: known from what is stored, whatever token pads."""

import numpy as np
import pytest

from megapack.steps.pack import pack
from megapack.steps.split import list_sources, split_source
from megapack.steps.tokenize import tokenize_part
from megapack.store.manifest import Split
from megapack.store.reader import open_dataset
from tests.support.prepare_jobs import line, prepare_job
from tests.support.toy_tokenizers import save_tokenizer, with_bos, words_tokenizer

# An end token after each turn: the first one ends no document.
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ m.content + ' </s> ' }}{% else %}"
    "{% generation %}{{ m.content + ' </s>' }}{% endgeneration %}{{ ' ' }}{% endif %}{% endfor %}"
)
CHAT = line(("user", "What is 1+2?"), ("assistant", "It is 3."))


def rows(tmp_path, *, row_length, lines=(CHAT,), bos=False, **named):
    tmp_path.mkdir(exist_ok=True)
    source = tmp_path / "a.jsonl"
    source.write_text("\n".join(lines))
    job = prepare_job(tmp_path, source, pack={"row_length": row_length}, validation_fraction=0.0)
    words = words_tokenizer("What is 1+2? It 3. w1 w2")
    save_tokenizer(
        with_bos(words, token="<u>") if bos else words, job.tokenizer, template=TEMPLATE, **named
    )
    sources = [split_source(job, shard) for shard in list_sources(job)]
    tables = [tokenize_part(job, ref, at) for ref in sources for at in range(ref.num_parts)]
    ref = pack(job, conversations=sources, documents=tables)
    with open_dataset(ref.uri, ref.version) as dataset:
        return list(dataset.rows(Split.TRAIN, np.arange(dataset.num_rows(Split.TRAIN))))


@pytest.mark.parametrize("row_length", [7, 8, 12, 32], ids=["label_only", "full", "short", "long"])
@pytest.mark.parametrize("pad", ["</s>", "<pad>", None])
def test_length_and_targets_do_not_depend_on_the_pad_or_on_end_tokens_inside(
    tmp_path, row_length, pad
):
    named = {"eos_token": "</s>"} | ({} if pad is None else {"pad_token": pad})
    (row,) = rows(tmp_path, row_length=row_length, **named)
    whole = [8, 9, 10, 2, 11, 9, 12, 2]
    assert row.layout.lengths.tolist() == [min(8, row_length)]
    assert row.tokens.tolist()[:8] == whole[:row_length]
    labels = row.layout.labels(row.tokens, row.target_runs, final_label=row.final_label).tolist()
    assert [label for label in labels if label >= 0] == [11, 9, 12, 2]
    assert labels[3:7] == [11, 9, 12, 2]
    assert row.num_target_tokens == 4


def test_each_document_of_a_row_has_exactly_one_bos(tmp_path):
    others = [line(("user", f"w{i}"), ("assistant", f"w{3 - i}")) for i in (1, 2)]
    lines = [CHAT, *others]
    (row,) = rows(tmp_path, row_length=40, lines=lines, bos=True)
    tokens = row.tokens.tolist()
    assert row.layout.num_segments == 3
    assert all(tokens[at] == 3 and tokens[at + 1] != 3 for at in row.layout.slot_starts)
    assert tokens.count(3) == 3


def test_packed_and_single_documents_have_the_same_targets(tmp_path):
    lines = [CHAT, line(("user", "w1"), ("assistant", "w2"))]
    (together,) = rows(tmp_path / "one", row_length=32, lines=lines, pad_token="</s>")
    alone = [
        rows(tmp_path / str(number), row_length=32, lines=[one], pad_token="</s>")[0]
        for number, one in enumerate(lines)
    ]
    assert together.num_target_tokens == sum(row.num_target_tokens for row in alone)
