from infra.demo_run import fields_of
from infra.distill_demo import parameters_of, table
from megapack.jobs.distill import DistillRequest
from megapack.jobs.extract import ExtractRequest
from megapack.jobs.train import TrainRequest


def test_the_deployments_fit_together():
    chosen = parameters_of("flows.distill.distill")
    TrainRequest.model_validate(chosen.pop("train"))
    distill = DistillRequest.model_validate(chosen)
    extract = ExtractRequest.model_validate(parameters_of("flows.extract.extract_teacher"))
    assert distill.dataset == extract.dataset
    assert distill.distill.kind in [kind for kind, _ in extract.extract.payload.dtypes()]


def test_the_table_says_what_the_runs_measured():
    lines = ("evaluation step=0 loss=9.0 nll=8.1", "evaluation step=7 nll=2.5 divergence=0.25")
    last = fields_of("\n".join(lines), "evaluation")[-1]
    alone = {"step": "7", "nll": "3.0", "divergence": "0.75"}
    lines = table(
        [
            ("teacher", {"steps": "9", "nll": "1.5"}),
            ("student, taught", {"steps": last["step"], **last}),
            ("student, labels alone", {"steps": "7", **alone}),
        ]
    )
    assert [line.split() for line in lines[2:6]] == [
        ["teacher", "9", "1.5000"],
        ["student,", "taught", "7", "2.5000", "0.2500"],
        ["student,", "labels", "alone", "7", "3.0000", "0.7500"],
        ["taught", "-", "labels", "alone", "-0.5000", "-0.5000"],
    ]
