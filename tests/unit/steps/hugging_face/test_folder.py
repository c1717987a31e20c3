"""Model folders: found whole, or refused by tensor; known by content."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from megapack.errors import ConfigError, DataError
from megapack.steps.hugging_face.folder import open_folder
from megapack.steps.hugging_face.names import HEAD
from tests.support.hf_folder import CONFIG, tensors, write_folder

NORM = "model.layers.1.input_layernorm.weight"


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model")


def save(folder, change):
    values = tensors(CONFIG)
    change(values)
    save_file(values, folder / "model.safetensors")


def test_folder_holds_shape_and_headers(folder):
    found = open_folder(str(folder))
    assert found.model.num_layers == 2
    assert found.tensors[NORM].shape == (32,)
    assert found.files == ("model.safetensors",)
    assert open_folder(f"file://{folder}") == found


def test_folder_of_several_files_is_read_by_its_index(folder):
    whole = open_folder(str(folder))
    values = tensors(CONFIG)
    (folder / "model.safetensors").unlink()
    names = sorted(values)
    places = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: values[name] for name in names if places[name] == file}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    found = open_folder(str(folder))
    assert found.files == ("model-0.safetensors", "model-1.safetensors")
    assert {name: one.shape for name, one in found.tensors.items()} == {
        name: one.shape for name, one in whole.tensors.items()
    }
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(DataError, match=r"model-1\.safetensors missing"):
        open_folder(str(folder))
    index.write_text(json.dumps({"weight_map": dict.fromkeys(places, "../model.safetensors")}))
    with pytest.raises(DataError, match=r"\.\./model\.safetensors outside it"):
        open_folder(str(folder))


def test_a_tensor_that_stands_in_two_files_is_refused(folder):
    values = tensors(CONFIG)
    save_file({name: value + 1 for name, value in values.items()}, folder / "other.safetensors")
    index = folder / "model.safetensors.index.json"
    places = dict.fromkeys(values, "model.safetensors")
    index.write_text(json.dumps({"weight_map": {**places, NORM: "other.safetensors"}}))
    with pytest.raises(DataError, match=r"each tensor in one file.*model.*and in other"):
        open_folder(str(folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.pop(NORM), rf"1 missing: {NORM}"),
        (lambda values: values.pop(HEAD), r"1 missing: lm_head.weight"),
        (lambda values: values.update(score=np.zeros((2, 32), np.float32)), r"1 more: score"),
        (
            lambda values: values.update({NORM: np.zeros(31, np.float32)}),
            rf"{NORM}: expected shape \[32\].*found \[31\] in F32",
        ),
        (
            lambda values: values.update({NORM: np.zeros(32, np.int8)}),
            r"found \[32\] in I8.*quantised",
        ),
    ],
)
def test_tensors_that_are_not_those_of_the_configuration_are_named(folder, change, message):
    save(folder, change)
    with pytest.raises(DataError, match=message):
        open_folder(str(folder))


def test_buffers_of_old_folders_and_a_tied_head_that_was_written_out_are_no_fault(folder):
    buffer = "model.layers.0.self_attn.rotary_emb.inv_freq"
    save(folder, lambda values: values.update({buffer: np.zeros(4, np.float32)}))
    assert buffer not in open_folder(str(folder)).tensors
    config = folder / "config.json"
    config.write_text(json.dumps({**CONFIG, "tie_word_embeddings": True}))
    assert HEAD in open_folder(str(folder)).tensors


@pytest.mark.parametrize(
    ("break_it", "error", "message"),
    [
        (lambda folder: shutil.rmtree(folder), ConfigError, "config.json at .*found none.*hub"),
        (lambda folder: (folder / "config.json").write_text("{"), ConfigError, "expected JSON in"),
        (lambda folder: (folder / "config.json").write_text("[]"), ConfigError, "found list"),
        (
            lambda folder: (folder / "model.safetensors").unlink(),
            ConfigError,
            "found neither.*pickled weights are not opened",
        ),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"version https://git-lfs"),
            DataError,
            "damaged one.*git lfs pull",
        ),
    ],
)
def test_folders_that_are_none_are_refused(folder, break_it, error, message):
    break_it(folder)
    with pytest.raises(error, match=message):
        open_folder(str(folder))
    with pytest.raises(ConfigError, match="found scheme 'hf'"):
        open_folder("hf://meta/llama")


def test_digest_is_that_of_the_content_wherever_it_stands(folder, tmp_path):
    digest = open_folder(str(folder)).digest()
    copy = shutil.copytree(folder, tmp_path / "elsewhere")
    assert open_folder(str(copy)).digest() == digest
    (copy / "README.md").write_text("not read")
    assert open_folder(str(copy)).digest() == digest
    assert open_folder(str(write_folder(tmp_path / "other", seed=1))).digest() != digest
    assert open_folder(str(write_folder(copy, rms_norm_eps=1e-6))).digest() != digest
