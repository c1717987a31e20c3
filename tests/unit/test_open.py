"""`megapack.open`: what other trainers read, against a loop over documents."""

import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

import megapack
from megapack.errors import ConfigError
from megapack.layout.granularity import Granularity
from megapack.layout.pack_layout import IGNORE_INDEX, PackLayout
from megapack.layout.zigzag import zigzag_index
from megapack.records.packed_row import PackedRow
from megapack.records.plain_row import plain_row
from megapack.records.thd_row import thd_row
from tests.support.rows import GRANULARITY, make_row
from tests.support.tiny_dataset import make_dataset, make_rows


@pytest.fixture
def dataset(tmp_path):
    ref = make_dataset(tmp_path / "data", make_rows(7, seed=1), make_rows(2, seed=2))
    with megapack.open(ref.uri) as opened:
        yield opened


def documents_of(row):
    """(tokens, supervised tokens) of each document, by a plain loop over positions."""
    labels = row.labels()
    for start, length in zip(row.layout.slot_starts, row.layout.lengths, strict=True):
        tokens = [int(row.tokens[start + i]) for i in range(length)]
        learnt = [False] + [labels[start + i] != IGNORE_INDEX for i in range(length - 1)]
        if row.final_label is not None:
            tokens.append(row.final_label)
            learnt.append(labels[start + length - 1] != IGNORE_INDEX)
        yield tokens, learnt


def full_row():
    """One document of row_length + 1 tokens, the last of them supervised."""
    return PackedRow(
        tokens=np.arange(1, 9),
        target_runs=[5, 8],
        layout=PackLayout(row_length=8, lengths=[8], granularity=Granularity(segment=1, row=1)),
        document_ids=("d",),
        final_label=99,
    )


def test_the_store_of_one_dataset_opens_as_that_dataset_and_says_what_it_is(tmp_path):
    ref = make_dataset(tmp_path / "datasets/chats", make_rows(3, seed=1))
    with megapack.open(str(tmp_path)) as opened:
        assert opened.uri == ref.uri
        assert repr(opened) == f"<megapack {ref.uri} version 1, train: 3 rows of 96>"


def test_the_store_of_two_datasets_names_both(tmp_path):
    for name in ("chats", "code"):
        make_dataset(tmp_path / "datasets" / name, make_rows(1, seed=1))
    with pytest.raises(
        ConfigError, match=r"found 2 under datasets/.*datasets/chats.*datasets/code"
    ):
        megapack.open(str(tmp_path))


def test_importing_the_package_loads_nothing_else():
    code = (
        "import sys, megapack; print(sorted(m for m in sys.modules if m.startswith('megapack')), "
        "'numpy' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['megapack'] False"


def test_opening_and_reading_loads_no_torch(tmp_path):
    ref = make_dataset(tmp_path / "data", make_rows(2, seed=1))
    code = (
        "import sys, megapack\n"
        "data = megapack.open(sys.argv[1])\n"
        "list(data.rows()), list(data.thd(cp_size=2)), megapack.flatten([data.hf()[0]])\n"
        "print([m for m in ('torch', 'megatron', 'transformers') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, ref.uri], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_rows_of_all_ranks_are_the_split(dataset):
    ranks = [[row.document_ids for row in dataset.rows(rank, 3)] for rank in range(3)]
    assert [len(rows) for rows in ranks] == [3, 3, 3]
    seen = [ids for rows in ranks for ids in rows if ids]
    assert sorted(seen) == sorted(row.document_ids for row in make_rows(7, seed=1))
    assert dataset.share(3).filler_rows == 2
    assert dataset.share(3, "drop").dropped_rows == 1


def test_fillers_have_no_document_and_no_loss(dataset):
    last = list(dataset.thd(2, 3))[-1]
    assert last.is_filler
    assert last.loss_mask.sum() == 0
    assert last.cu_seqlens_padded.tolist() == [0, 96]
    assert last.max_seqlen == 96


def test_thd_is_the_row_position_by_position(dataset):
    for row, thd in zip(dataset.rows(), dataset.thd(), strict=True):
        assert thd.tokens.tolist() == row.tokens.tolist()
        assert thd.tokens.dtype == thd.labels.dtype == thd.position_ids.dtype == np.int64
        assert thd.loss_mask.dtype == np.float32
        assert thd.cu_seqlens.dtype == thd.cu_seqlens_padded.dtype == np.int32
        assert not thd.is_filler
        assert int(thd.loss_mask.sum()) == row.num_target_tokens
        starts = thd.cu_seqlens_padded.tolist()
        real = np.diff(thd.cu_seqlens).tolist()
        assert starts[-1] == thd.row_length == 96
        assert max(np.diff(starts)) == thd.max_seqlen
        assert real[row.layout.num_segments :] == [0] * (len(real) - row.layout.num_segments)
        assert not thd.loss_mask[starts[row.layout.num_segments] :].any()
        for at, length in enumerate(real[: row.layout.num_segments]):
            start = starts[at]
            stretch = thd.position_ids[start : starts[at + 1]]
            assert stretch.tolist() == list(range(starts[at + 1] - start))
            counted = np.flatnonzero(thd.loss_mask[start : starts[at + 1]])
            assert (counted < length - 1).all()
            following = thd.tokens[start + 1 : starts[at + 1]]
            assert thd.labels[start + counted].tolist() == following[counted].tolist()


def test_thd_shares_of_context_parallel_ranks_are_the_zigzag_of_every_slot():
    """Slots of 8 and 4: rank 0 owns [0, 1, 6, 7, 8, 11], as megatron-core cuts them."""
    layout = PackLayout(row_length=12, lengths=[7, 3], granularity=Granularity(segment=4, row=4))
    row = PackedRow(
        tokens=np.arange(12), target_runs=[1, 4], layout=layout, document_ids=("a", "b")
    )
    shares = [thd_row(row, cp_size=2, cp_rank=rank) for rank in range(2)]
    assert shares[0].tokens.tolist() == [0, 1, 6, 7, 8, 11]
    assert shares[0].position_ids.tolist() == [0, 1, 6, 7, 0, 3]
    assert shares[1].tokens.tolist() == [2, 3, 4, 5, 9, 10]
    for share in shares:
        assert share.cu_seqlens.tolist() == [0, 7, 10]
        assert share.cu_seqlens_padded.tolist() == [0, 8, 12]
        assert share.max_seqlen == 8
    assert sum(int(share.loss_mask.sum()) for share in shares) == 3


def test_thd_shares_put_together_are_the_whole_row(dataset):
    whole = next(dataset.thd())
    for size in (2, 4):
        joined = np.empty_like(whole.labels)
        for rank in range(size):
            share = next(dataset.thd(cp_size=size, cp_rank=rank))
            index = zigzag_index(whole.cu_seqlens_padded, cp_size=size, cp_rank=rank)
            joined[index] = share.labels
        assert joined.tolist() == whole.labels.tolist()


def test_thd_refuses_a_context_parallel_size_that_the_multiples_do_not_serve(tmp_path):
    rows = make_rows(1, seed=1, granularity=Granularity(segment=1, row=16))
    opened = megapack.open(make_dataset(tmp_path / "data", rows).uri)
    with pytest.raises(ConfigError, match=r"multiples of 2\*cp = 4, found multiples of 1"):
        opened.thd(cp_size=2)


@pytest.mark.parametrize("row", [make_row([5, 17, 3], seed=3), full_row()])
def test_plain_rows_are_the_documents_end_to_end_without_padding(row):
    plain = plain_row(row)
    documents = list(documents_of(row))
    assert plain.lengths.tolist() == [len(tokens) for tokens, _ in documents]
    assert plain.tokens.tolist() == [token for tokens, _ in documents for token in tokens]
    assert plain.supervised.tolist() == [one for _, learnt in documents for one in learnt]
    assert plain.position_ids().tolist() == [
        i for tokens, _ in documents for i in range(len(tokens))
    ]
    assert int(plain.supervised.sum()) == row.num_target_tokens


def test_hf_labels_are_token_aligned_and_never_cross_a_document(dataset):
    data = dataset.hf()
    assert len(data) == 7
    for row, features in zip(dataset.rows(), data, strict=True):
        ids, labels = features["input_ids"], features["labels"]
        counted = labels != IGNORE_INDEX
        assert (labels[counted] == ids[counted]).all()
        assert int(counted.sum()) == row.num_target_tokens
        starts = np.flatnonzero(features["position_ids"] == 0)
        assert not counted[starts].any()
        assert np.diff(np.append(starts, ids.size)).tolist() == features["seq_lengths"].tolist()


def test_flattened_rows_carry_every_boundary(dataset):
    data = dataset.hf()
    batch = megapack.flatten([data[0], data[1]])
    total = data[0]["input_ids"].size + data[1]["input_ids"].size
    lengths = [*data[0]["seq_lengths"].tolist(), *data[1]["seq_lengths"].tolist()]
    assert batch["input_ids"].shape == batch["labels"].shape == (1, total)
    assert batch["cu_seq_lens_q"].tolist() == np.cumsum([0, *lengths]).tolist()
    assert batch["cu_seq_lens_q"].dtype == np.int32
    assert batch["max_length_q"] == batch["max_length_k"] == max(lengths)


def test_hf_rows_survive_pickling_and_are_those_of_the_version_that_was_opened(dataset, tmp_path):
    data = dataset.hf()
    first = data[0]["input_ids"].tolist()
    make_dataset(tmp_path / "data", make_rows(3, seed=9))
    copy = pickle.loads(pickle.dumps(data))
    assert len(copy) == 7
    assert copy[0]["input_ids"].tolist() == first


def first_ids(data):
    return data[0]["input_ids"].tolist()


def test_hf_rows_are_read_by_spawned_workers(dataset):
    data = dataset.hf()
    expected = first_ids(data)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(first_ids, data).result() == expected


def test_a_process_forked_after_a_read_is_refused_instead_of_hanging(tmp_path):
    ref = make_dataset(tmp_path / "data", make_rows(2, seed=1))
    code = (
        "import os, sys, megapack\n"
        "data = megapack.open(sys.argv[1])\n"
        "rows = data.hf()\n"
        "list(data.rows())\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        rows[0]\n"
        "    except megapack.errors.ConfigError as error:\n"
        "        print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, ref.uri],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "would hang" in run.stdout


def test_epochs_of_hf_rows_have_orders_of_their_own(dataset):
    orders = [
        [tuple(one["input_ids"].tolist()) for one in dataset.hf(epoch=epoch)] for epoch in (0, 1)
    ]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def test_validation_is_opened_by_name_and_another_name_is_refused(dataset):
    assert len(megapack.open(dataset.uri, split="validation")) == 2
    with pytest.raises(ConfigError, match="expected split 'train' or 'validation', found 'test'"):
        megapack.open(dataset.uri, split="test")


def test_an_empty_split_is_refused(tmp_path):
    ref = make_dataset(tmp_path / "data", make_rows(1, seed=1))
    with pytest.raises(ConfigError, match="found none"):
        megapack.open(ref.uri, split="validation")


def test_an_unknown_remainder_is_refused(dataset):
    with pytest.raises(ConfigError, match="fill, drop; found 'pad'"):
        dataset.rows(0, 1, remainder="pad")


def test_granularity_of_the_test_rows_serves_four_context_parallel_ranks():
    assert GRANULARITY.segment == 8
