import yaml

from infra.demo_run import ROOT
from infra.main_job import parameters
from megapack.jobs.extract import ExtractSettings
from megapack.jobs.prepare import PrepareJob
from megapack.jobs.refresh import RefreshSettings
from megapack.jobs.train import TrainSettings


def validated(chosen):
    TrainSettings.model_validate(chosen["train"])
    ExtractSettings.model_validate(chosen["extract"])
    return PrepareJob.model_validate(chosen["prepare"])


def test_parameters_without_data_are_the_deployments_own():
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    assert parameters(None, None) == deployments[0]["parameters"]
    validated(parameters(None, None))


def test_parameters_with_data_make_a_valid_job_of_its_own_name(tmp_path):
    job = validated(parameters(str(tmp_path / "my chats.jsonl"), "nemotron-nano-v2"))
    assert job.sources[0].uri == str(tmp_path / "my chats.jsonl")
    assert job.name == "my-chats.jsonl-nemotron-nano-v2"
    assert job.tokenize.format == "nemotron-nano-v2"
    assert job.pack.row_length > 1024


def test_parameters_keep_an_s3_address_as_it_is():
    assert (
        validated(parameters("s3://bucket/prefix/", None)).sources[0].uri == "s3://bucket/prefix/"
    )


def test_nightly_refresh_has_a_schedule_and_a_valid_job():
    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    (refresh,) = [one for one in deployments if "refresh" in one["entrypoint"]]
    assert refresh["schedules"][0]["cron"]
    PrepareJob.model_validate(refresh["parameters"]["prepare"])
    RefreshSettings.model_validate(refresh["parameters"]["refresh"])
