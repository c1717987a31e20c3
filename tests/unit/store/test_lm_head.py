import numpy as np
import pytest
import torch
from safetensors.torch import load

from megapack.errors import ConfigError, ContractError, DataError
from megapack.records.payload import PayloadDtype
from megapack.store import lm_head
from megapack.store.lm_head import LmHeadReader, lm_head_info, lm_head_parts, write_lm_head
from megapack.store.location import open_location

ROWS = (np.arange(10 * 3, dtype="<u2") * 7 + 0x3F80).reshape(10, 3)


@pytest.fixture
def location(tmp_path, monkeypatch):
    monkeypatch.setattr(lm_head, "SHARD_ROWS", 4)
    return open_location(tmp_path)


def written(location, *, cuts=(10,)):
    blocks = np.split(ROWS, cuts)
    return write_lm_head(location, blocks, PayloadDtype.BF16)


def test_files_do_not_depend_on_how_the_rows_came_and_safetensors_reads_them(location):
    parts = written(location)
    assert written(location, cuts=(1, 2, 9)) == parts
    assert [part.name for part in parts] == [
        f"lm_head/0/{first:08d}.safetensors" for first in (0, 4, 8)
    ]
    tensors = [load(location.get(part.key))["weight"] for part in parts]
    assert tensors[0].dtype is torch.bfloat16
    assert torch.cat(tensors).view(torch.uint16).numpy().tolist() == ROWS.tolist()


def test_a_range_reads_only_the_files_that_hold_it(location):
    parts = written(location)
    info = lm_head_info(parts, PayloadDtype.BF16)
    assert (info.vocab_size, info.width) == (10, 3)
    reader = LmHeadReader(location, lm_head_parts(reversed(parts), 0), info)
    assert reader.rows(0, 10).tolist() == ROWS.tolist()
    location.delete(parts[0].key)
    assert reader.rows(5, 9).tolist() == ROWS[5:9].tolist()
    assert reader.rows(4, 4).shape == (0, 3)
    with pytest.raises(ConfigError, match=r"in \[0, 10\], found 9 to 11"):
        reader.rows(9, 11)


def test_an_altered_file_is_named(location):
    parts = written(location)
    reader = LmHeadReader(location, parts, lm_head_info(parts, PayloadDtype.BF16))
    location.put(parts[1].key, location.get(parts[1].key)[:-1] + b"?")
    assert reader.rows(0, 4).tolist() == ROWS[:4].tolist()
    with pytest.raises(DataError, match=r"lm_head/0/00000004\.safetensors.*altered"):
        reader.rows(3, 5)


def test_files_of_another_head_and_rows_of_another_width_are_refused(location):
    parts = written(location)
    info = lm_head_info(parts, PayloadDtype.BF16)
    with pytest.raises(DataError, match="with 10 rows, found 2 files that make another"):
        LmHeadReader(location, parts[:2], info)
    with pytest.raises(ContractError, match=r"rows of 3 values of uint16, found \(2, 2\)"):
        write_lm_head(location, [ROWS, ROWS[:2, :2]], PayloadDtype.BF16)
    with pytest.raises(ContractError, match="expected rows, found none"):
        write_lm_head(location, [], PayloadDtype.BF16)
