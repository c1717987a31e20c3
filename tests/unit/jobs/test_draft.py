"""A draft in a job: what is refused, and addresses of jobs without one."""

from typing import Any

import pytest
from pydantic import ValidationError

from megapack.jobs.addresses import train_address, train_address_fields
from megapack.jobs.train import TrainJob, TrainSettings
from megapack.records.refs import DatasetRef

MODEL = {
    "num_layers": 4,
    "hidden_size": 32,
    "ffn_hidden_size": 64,
    "num_attention_heads": 4,
    "num_query_groups": 2,
}


def settings(draft: Any, **changes: Any) -> TrainSettings:
    return TrainSettings.model_validate(
        {"model": MODEL, "steps": 2, "global_batch_rows": 2, "draft": draft, **changes}
    )


def address(draft: Any) -> str:
    dataset = DatasetRef(
        uri="data", version=1, digest="0" * 64, num_rows=1, num_real_tokens=1, num_target_tokens=1
    )
    return train_address(TrainJob(dataset=dataset, settings=settings(draft), output="out"))


@pytest.mark.parametrize(
    ("draft", "changes", "message"),
    [
        ({"layers": [0, 4]}, {}, "different numbers from 1 to num_layers = 4"),
        ({"layers": [2, 2]}, {}, r"layers = \[2, 2\]"),
        ({}, {"parallel": {"pipeline_model_parallel_size": 2}}, "pp = 2, expected 1"),
        ({}, {"backend": "te"}, "backend = te, expected backend = portable"),
        ({"training": "alone"}, {}, "expected a starting_model, found none"),
    ],
)
def test_draft_that_cannot_be_trained_is_refused(
    draft: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        settings(draft, **changes)


def test_draft_belongs_to_the_address_and_its_absence_does_not() -> None:
    assert len({address(None), address({}), address({"depth": 2})}) == 3
    dataset = DatasetRef(
        uri="data", version=1, digest="0" * 64, num_rows=1, num_real_tokens=1, num_target_tokens=1
    )
    job = TrainJob(dataset=dataset, settings=settings(None), output="out")
    assert not [name for name in train_address_fields(job) if "draft" in name]
