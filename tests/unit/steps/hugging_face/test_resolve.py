"""Requests to settings, jobs whose starting weights changed, and addresses."""

import shutil

import pytest
from pydantic import ValidationError

from megapack.errors import ConfigError
from megapack.jobs.addresses import extract_address, train_address
from megapack.jobs.model import Recompute, TrainPrecision
from megapack.jobs.train import TrainRequest, TrainSettings
from megapack.records.refs import FolderRef
from megapack.steps.extraction.checks import check_extract_job
from megapack.steps.hugging_face.folder import open_folder
from megapack.steps.hugging_face.resolve import resolve
from megapack.steps.train import check_train_job
from tests.support.hf_folder import write_folder
from tests.support.tiny_dataset import MODEL, extract_job, make_dataset, make_rows, train_job
from tests.unit.steps.test_train import commit_checkpoint

RUN = {"steps": 6, "global_batch_rows": 4}


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model")


@pytest.fixture
def dataset(tmp_path):
    return make_dataset(tmp_path / "data", make_rows(3, seed=1))


def request(folder, **changes):
    return TrainRequest(starting_model=str(folder), **RUN, **changes)


def starting(dataset, output, folder):
    found = open_folder(str(folder))
    start = {"starting_model": str(folder), "starting_digest": found.digest()}
    return train_job(dataset, output, model=found.model, **start)


def test_model_and_digest_are_taken_from_the_folder(folder):
    found = open_folder(str(folder))
    settings = resolve(request(folder))
    assert settings.model == found.model
    assert settings.starting_weights == FolderRef(uri=str(folder), digest=found.digest())
    assert resolve(settings) == settings
    assert TrainSettings.model_validate_json(settings.model_dump_json()) == settings


def test_a_run_chooses_precision_but_not_shape(folder):
    chosen = open_folder(str(folder)).model.model_copy(
        update={
            "precision": TrainPrecision.BF16,
            "vocab_multiple": 16,
            "kv_channels": 8,
            "recompute": Recompute.FULL,
        }
    )
    assert resolve(request(folder, model=chosen)).model.precision == "bf16"
    for change, message in (
        ({"rotary_base": 10_000}, r"rotary_base = 10000, the starting model .* has 500000"),
        ({"mtp_num_layers": 1}, r"mtp_num_layers = 1, the starting model .* has 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolve(request(folder, model=chosen.model_copy(update=change)))


def test_a_digest_that_is_named_must_be_the_folders(folder):
    with pytest.raises(ConfigError, match=r"with digest 0{64}, found .*were changed"):
        resolve(request(folder, starting_digest="0" * 64))


def test_resolved_settings_need_no_folder(folder):
    settings = resolve(request(folder))
    shutil.rmtree(folder)
    assert resolve(settings) == settings
    assert resolve(TrainRequest.model_validate(settings.model_dump())) == settings


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "expected a model, or a starting_model"),
        ({"model": MODEL, "starting_digest": "0" * 64}, "expected a starting_model with it"),
    ],
)
def test_requests_without_a_model_are_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        TrainRequest(**RUN, **fields)
    with pytest.raises(ValidationError, match="expected starting_digest with it"):
        TrainSettings(**RUN, model=MODEL, starting_model="m")


def test_address_depends_on_the_content_of_the_weights_not_on_their_place(
    dataset, folder, tmp_path
):
    copy = shutil.copytree(folder, tmp_path / "copy")
    other = write_folder(tmp_path / "other", seed=1)
    job = starting(dataset, tmp_path / "out", folder)
    assert train_address(job) == train_address(starting(dataset, tmp_path / "out", copy))
    assert train_address(job) != train_address(starting(dataset, tmp_path / "out", other))
    random = train_job(dataset, tmp_path / "out", model=job.settings.model)
    assert train_address(job) != train_address(random)


def test_weights_that_changed_are_refused_until_there_is_a_checkpoint(dataset, folder, tmp_path):
    job = starting(dataset, tmp_path / "out", folder)
    check_train_job(job)
    write_folder(folder, seed=1)
    with pytest.raises(ConfigError, match="its files were changed"):
        check_train_job(job)
    commit_checkpoint(job, tmp_path / "files", step=2)
    shutil.rmtree(folder)
    check_train_job(job)


def test_vocabulary_smaller_than_the_datasets_is_refused(dataset, tmp_path):
    small = write_folder(tmp_path / "small", vocab_size=100)
    with pytest.raises(ConfigError, match=r"vocab_size = 100, expected at least .* of 101"):
        check_train_job(starting(dataset, tmp_path / "out", small))


def test_a_folder_is_a_teacher(dataset, folder, tmp_path):
    found = open_folder(str(folder))
    teacher = FolderRef(uri=str(folder), digest=found.digest())
    job = extract_job(dataset, teacher, tmp_path / "payload").model_copy(
        update={"model": found.model}
    )
    assert type(job).model_validate_json(job.model_dump_json()) == job
    assert extract_address(job)
    check_extract_job(job)
    write_folder(folder, seed=1)
    with pytest.raises(ConfigError, match="its files were changed"):
        check_extract_job(job)
