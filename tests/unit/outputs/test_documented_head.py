"""The head of docs/heads.md is code that runs."""

import re
from pathlib import Path
from typing import Any

import torch

from megapack.model.forward import ModelOutput
from megapack.parallel.context import ParallelContext
from megapack.parallel.lm_head import LmHead
from tests.support.microbatches import microbatch
from tests.support.rows import make_row

PAGE = Path(__file__).resolve().parents[3] / "docs/heads.md"


def test_head_of_the_page_gives_margins_by_document() -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    names: dict[str, Any] = {"__name__": "documented_head"}
    exec(compile(code, str(PAGE), "exec"), names)
    row = make_row([5, 17, 3], seed=1)
    hidden, weight = torch.randn(96, 4), torch.randn(104, 4)
    output = ModelOutput(
        logits=None, hidden=None, vocab_size=101, lm_head=LmHead(hidden=hidden, weight=weight)
    )
    records = names["MarginHead"]()(output, microbatch(row), ParallelContext.single()).records
    assert [record.document_id for record in records] == list(row.document_ids)
    best = (hidden @ weight.T)[:, :101].topk(2, dim=-1).values
    margin = best[:, 0] - best[:, 1]
    for record, start, length in zip(records, (0, 8, 32), (5, 17, 3), strict=True):
        torch.testing.assert_close(record.values, margin[start : start + length])
