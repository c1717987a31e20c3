"""Distillation jobs: what they refuse, and what their address depends on."""

import pytest
from pydantic import ValidationError

from megapack.jobs.addresses import train_address, train_address_fields
from megapack.jobs.distill import Distillation, DistillSettings, Teacher
from megapack.jobs.model import ModelJob
from megapack.jobs.outputs import OutputSettings, TokenLossBy
from megapack.jobs.train import TrainJob, TrainSettings
from megapack.records.refs import DatasetRef, PayloadRef

MODEL = ModelJob(
    num_layers=2, hidden_size=32, ffn_hidden_size=48, num_attention_heads=4, num_query_groups=2
)


def job(distill=None, **settings):
    ref = DatasetRef(
        uri="u", version=1, digest="d" * 64, num_rows=1, num_real_tokens=1, num_target_tokens=1
    )
    return TrainJob(
        dataset=ref,
        settings=TrainSettings(model=MODEL, steps=3, global_batch_rows=2, **settings),
        output="o",
        distill=distill,
    )


def teacher(digest="a", **fields):
    ref = PayloadRef(
        uri=f"s3://x/{digest}", version=1, digest=digest * 64, num_documents=1, num_positions=1
    )
    return Teacher(payload=ref, **fields)


def address(*teachers, **settings):
    return train_address(job(Distillation(settings=DistillSettings(**settings), teachers=teachers)))


def test_plain_training_stands_where_it_always_did():
    assert train_address(job()) == "34dade054f4f897576fc191917f27b97"


def test_address_depends_on_content_of_teachers_and_loss_and_not_on_places_or_order():
    plain = address(teacher())
    moved = teacher().payload.model_copy(update={"uri": "elsewhere", "version": 3})
    assert address(Teacher(payload=moved)) == plain
    assert address(teacher("a"), teacher("b")) == address(teacher("b"), teacher("a"))
    mapped = teacher(vocabulary="map.json", vocabulary_digest="1" * 64)
    assert address(teacher(vocabulary="m.json", vocabulary_digest="1" * 64)) == address(mapped)
    others = [
        train_address(job()),
        plain,
        address(teacher("b")),
        address(teacher("a"), teacher("b")),
        address(teacher(sources=("chat",))),
        address(mapped),
        address(teacher(vocabulary="map.json", vocabulary_digest="2" * 64)),
        address(teacher(), nll_weight=0.5),
    ]
    assert len(set(others)) == len(others)


def test_fields_of_the_address_name_what_is_learned():
    fields = train_address_fields(job(Distillation(teachers=(teacher(),))))
    assert fields["distill.settings.kind"] == "topk"
    assert fields["distill.teachers"][0]["payload"] == "a" * 64
    assert not [name for name in train_address_fields(job()) if "distill" in name]


def test_a_loss_of_the_model_and_half_a_vocabulary_are_refused():
    own = OutputSettings(token_loss=TokenLossBy.MODEL)
    job(outputs=own)
    with pytest.raises(ValidationError, match="knows no teacher"):
        job(Distillation(teachers=(teacher(),)), outputs=own)
    with pytest.raises(ValidationError, match="expected both or none"):
        teacher(vocabulary="map.json")


@pytest.mark.parametrize("kind", ["hidden", "logits"])
def test_a_tail_of_the_whole_vocabulary_is_refused(kind):
    assert DistillSettings(kind="topk", tail="renormalize").tail == "renormalize"
    with pytest.raises(ValidationError, match=f"tail = renormalize with kind = {kind}"):
        DistillSettings(kind=kind, tail="renormalize")
