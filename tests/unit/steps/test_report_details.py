from collections import Counter
from dataclasses import replace

import numpy as np

from megapack.records.drops import DropReason
from megapack.steps.drop_advice import ADVICE
from megapack.steps.prepare import prepare
from megapack.steps.report_details import SHARE_BINS, packing_details
from megapack.steps.report_origin import Origin, origin
from megapack.steps.report_page import report_page
from megapack.store.manifest import PartKind
from megapack.store.part_reader import PartReader
from tests.support.documents import make_document
from tests.support.prepare_jobs import line, plain_line, prepare_job
from tests.unit.steps.test_pack import LENGTHS, packed, rows_of

HOSTILE = "<img src=x onerror=alert(1)>|`"


def sourced():
    names = ("a", HOSTILE, "c")
    return [replace(make_document(i, n), source=names[i % 3]) for i, n in enumerate(LENGTHS)]


def test_details_equal_a_loop_over_rows(tmp_path):
    _, _, ref = packed(tmp_path, documents=sourced())
    lengths, fill, shares, sources = Counter(), Counter(), Counter(), {}
    for row in rows_of(ref):
        fill[row.num_real_tokens] += 1
        counted = row.loss_mask()
        for at, name in enumerate(row.sources):
            start, size = int(row.layout.slot_starts[at]), int(row.layout.lengths[at])
            targets = int(counted[start : start + size].sum())
            lengths[size] += 1
            shares[min(SHARE_BINS - 1, targets * SHARE_BINS // size)] += 1
            sources[name] = np.add(sources.get(name, (0, 0, 0)), (1, size, targets))
    details = packing_details(ref)
    assert {n: int(c) for n, c in enumerate(details.lengths) if c} == dict(lengths)
    assert {n: int(c) for n, c in enumerate(details.fill) if c} == dict(fill)
    assert {n: int(c) for n, c in enumerate(details.shares) if c} == dict(shares)
    found = {one.name: [one.documents, one.tokens, one.targets] for one in details.sources}
    assert found == {name: counts.tolist() for name, counts in sources.items()}
    assert [one.name for one in details.sources] == sorted(sources)


def test_reports_read_no_tokens(tmp_path, monkeypatch):
    _, _, ref = packed(tmp_path)
    read, seen = PartReader.read, []

    def noted(self, part, **options):
        seen.append((part.kind, options.get("columns")))
        return read(self, part, **options)

    monkeypatch.setattr(PartReader, "read", noted)
    list(report_page(ref))
    columns = [names for kind, names in seen if kind is PartKind.ROWS]
    assert columns
    assert all(names and "tokens" not in names for names in columns)


def test_every_reason_has_advice():
    assert {reason.value for reason in DropReason} <= set(ADVICE)


def test_origin_says_what_splitting_lost(tmp_path):
    turns = [("user", "w1"), ("assistant", " ".join(["w3"] * 20))] * 4
    turns += [("user", "w2"), ("assistant", " ".join(["w4"] * 90))]
    source = tmp_path / "chats.jsonl"
    source.write_text(f"{plain_line(1)}\n{line(*turns)}\n")
    job = prepare_job(
        tmp_path, source, tokenize={"long_documents": "split"}, validation_fraction=0.0
    )
    ref = prepare(job).dataset
    found = origin(ref)
    assert (found.conversations, found.split_conversations, found.dropped_pieces) == (2, 1, 1)
    assert "1 exchange in no piece of those: dropped, see below" in found.sentences()
    # The exchange: user token, word, end, answer token, 90 words, end.
    assert found.lost_tokens == 95
    assert Origin(conversations=3).sentences() == []


def test_origin_is_unknown_when_its_tables_are_not_those(tmp_path):
    _, _, ref = packed(tmp_path)
    assert origin(ref) is None
