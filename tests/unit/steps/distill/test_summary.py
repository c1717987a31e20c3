import json

from megapack.jobs.distill import Distillation
from megapack.records.refs import PayloadRef
from megapack.steps.distill.summary import distillation_lines
from megapack.store.files import upload_files
from megapack.store.location import open_location
from megapack.store.manifest import Contents
from megapack.store.versions import commit
from tests.support.tiny_dataset import make_dataset, make_rows, train_job


def test_lines_have_held_out_numbers_before_and_after(tmp_path):
    dataset = make_dataset(tmp_path / "dataset", make_rows(1, seed=1))
    ref = PayloadRef(uri="s3://x/p", version=2, digest="a" * 64, num_documents=9, num_positions=9)
    job = train_job(dataset, tmp_path / "out").model_copy(
        update={"distill": Distillation(teachers=({"payload": ref},))}
    )
    rows = {"num_target_tokens": 7, "num_rows": 1}
    metrics = [
        {"kind": "evaluation", "step": 0, "loss": 4.0, "divergence": 3.0, "nll": 5.0, **rows},
        {"kind": "train", "step": 1, "loss": 3.5},
        {"kind": "evaluation", "step": 6, "loss": 2.0, "divergence": 1.0, "nll": 3.0, **rows},
    ]
    lines = "".join(json.dumps(one) + "\n" for one in metrics)
    (tmp_path / "metrics.jsonl").write_text(lines)
    parts = upload_files(job.output, tmp_path, ["metrics.jsonl"])
    contents = Contents(
        schema_id="megapack.checkpoint/1",
        kind="checkpoint",
        parts=parts,
        counts={"step": 6, "consumed_rows": 24},
    )
    made = commit(open_location(job.output), contents.manifest()).checkpoint_ref()
    assert distillation_lines(job, made) == [
        "evaluation step=0 loss=4.0000 divergence=3.0000 nll=5.0000 target_tokens=7",
        "evaluation step=6 loss=2.0000 divergence=1.0000 nll=3.0000 target_tokens=7",
        "loss kind=topk divergence=forward_kl nll_weight=0",
        "teacher documents=9 uri=s3://x/p version=2",
        f"checkpoint step=6 uri={made.uri} version=1",
        "reused nothing",
    ]
