import numpy as np

from megapack.layout.runs import mask_of_runs
from megapack.steps.inspect.shown import segment_of_row, shown_document
from tests.support.documents import make_document
from tests.unit.steps.test_pack import packed, rows_of


def test_documents_shown_from_rows_are_those_that_were_packed(tmp_path):
    _, documents, ref = packed(tmp_path)
    by_id = {document.document_id: document for document in documents}
    seen = 0
    for row in rows_of(ref):
        for at, name in enumerate(row.document_ids):
            shown, packed_one = segment_of_row(row, at), by_id[name]
            mask = mask_of_runs(packed_one.target_runs, packed_one.num_tokens)
            # A last token that fills no position is shown when it is trained as a label.
            kept = packed_one.num_tokens if mask[-1] else min(packed_one.num_tokens, 32)
            assert shown.tokens.tolist() == packed_one.tokens[:kept].tolist()
            assert shown.trained.tolist() == mask[:kept].tolist()
            assert shown.label_only == (kept > 32)
            seen += 1
    assert seen == ref_documents(documents)


def ref_documents(documents):
    return sum(document.num_tokens <= 33 for document in documents)


def test_marked_tokens_are_the_labels_that_count(tmp_path):
    _, _, ref = packed(tmp_path)
    for row in rows_of(ref):
        labels, counted = row.labels(), row.loss_mask()
        for at in range(row.layout.num_segments):
            shown = segment_of_row(row, at)
            start = shown.slot.start
            for index in np.flatnonzero(shown.trained).tolist():
                assert counted[start + index - 1]
                assert labels[start + index - 1] == shown.tokens[index]
    total = sum(
        segment_of_row(row, at).num_trained
        for row in rows_of(ref)
        for at in range(row.layout.num_segments)
    )
    assert total == ref.num_target_tokens


def test_document_of_a_table_has_its_file_and_line():
    shown = shown_document(make_document(3, 9))
    assert shown.place == "f.jsonl:4"
    assert shown.slot is None
    assert not shown.label_only
