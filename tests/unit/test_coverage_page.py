"""`docs/coverage.md`: every documented name has its row, and what a row names exists."""

import re

import pytest

from tests.support.nemo_names import DATA, PACKING, TRAIN
from tests.support.pages import ROOT, defined, members, missing_of, named_tests, page

PAGE = page("coverage.md")
PARTS = dict(re.findall(r"^## `([\w.]+)`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
ROWS = {
    row[0]: row[1:]
    for row in re.findall(
        r"^\| `(\w+)` \| (.+?) \| (.+?) \|$",
        PARTS["nemo_rl.data.megatron_sft_packed"],
        re.MULTILINE,
    )
}
FILES = sorted(set(re.findall(r"`((?:megapack|tests|docs)/[\w./]+\.\w+)`", PAGE)))
SFT_PACKED = [
    "IGNORE_INDEX",
    "IDENTITY_TEMPLATE",
    "NEMOTRON_H_ALIGNED_TEMPLATE",
    "NEMOTRON_NANO_V2_TEMPLATE",
    "_PROMPT_CONFIGS",
    "MEGATRON_SFT_PACKED_FIELDS",
    "MEGATRON_SFT_PACKED_BATCH_FIELDS",
    "assistant_prefix_len",
    "pad_token",
    "chat_template",
    "has_bos",
    "has_system_role",
    "MegatronSFTPackedDatumSpec",
    "input_ids",
    "target_ids",
    "token_mask",
    "position_ids",
    "packed_cu_seqlens",
    "packed_max_seqlen",
    "packed_context_parallel_size",
    "sample_mask",
    "packed_cu_seqlens_lengths",
    "validate_megatron_sft_prompt_format",
    "is_direct_packed_row",
    "direct_packed_cp_granularity",
    "split_megatron_sft_conversations",
    "resolve_megatron_sft_prompt_config",
    "_normalize_token_ids",
    "_tokenize_megatron_sft_conversation",
    "count_conversation_tokens",
    "_resolve_pad_token_id",
    "megatron_sft_packed_preprocessor",
    "row",
    "merged_messages",
    "conversation",
    "tokenizer",
    "token_ids",
    "prompt_format",
    "prompt_config",
    "override_pad_token",
    "context_parallel_size",
    "max_seq_length",
    "datum_dict",
    "task_data_spec",
    "idx",
    "_unused_kwargs",
]
DOCUMENTED = [
    (f"nemo_rl.models.megatron.{page_name}", ".".join(parts))
    for page_name, names in (("data", DATA), ("train", TRAIN))
    for owner, members_ in names.items()
    for parts in ((owner,), *((owner, member) for member in members_))
]
MODULES = [name for name in PARTS if name.startswith("nemo_rl.models")]
AUTOMODEL = "nemo_automodel.components.datasets.multimodal.packing"


def rows_of(module):
    """(names, place, tests, when last seen on a GPU) of each row of a part."""
    found = re.findall(r"^\| (`.+?) \| (.+) \| (.+) \| (.+) \|$", PARTS[module], re.MULTILINE)
    return [(re.findall(r"`([\w.]+)`", names), *rest) for names, *rest in found]


def test_each_page_has_its_part():
    assert list(PARTS) == ["nemo_rl.data.megatron_sft_packed", *MODULES, AUTOMODEL]
    assert set(MODULES) == {module for module, _ in DOCUMENTED}


@pytest.mark.parametrize("name", SFT_PACKED)
def test_every_documented_name_has_a_row_with_a_place_and_a_test_or_a_reason(name):
    place, shown = ROWS[name]
    assert "megapack" in place or "gone" in place or "`" in place or place == "the same"
    assert "tests/" in shown or (shown == "none needed" and "gone" in place)


def test_the_prompt_configuration_has_a_section_of_its_own():
    assert "### `_PromptConfig`" in PAGE


@pytest.mark.parametrize("module", MODULES)
def test_every_class_function_field_and_parameter_has_one_row(module):
    named = [name for names, *_ in rows_of(module) for name in names]
    assert len(named) == len(set(named))
    documented = [name for of, name in DOCUMENTED if of == module]
    # What a function returns is documented in prose there, and may have rows besides.
    assert {name for name in named if ".return." not in name} == set(documented)


@pytest.mark.parametrize("module", MODULES)
def test_every_row_names_a_test_or_comes_later_and_says_when_a_gpu_ran_it(module):
    for names, place, shown, gpu in rows_of(module):
        assert "`" in place or place.startswith(("gone", "later")), names
        assert named_tests(shown) or (shown == "none: later" and "later" in place), names
        assert gpu == "never" or re.fullmatch(r"\d{4}-\d{2}-\d{2}, .+", gpu), names


def test_every_name_of_the_multimodal_packer_has_one_row_with_a_place_and_a_test():
    rows = re.findall(r"^\| (`.+?) \| (.+) \| (.+) \|$", PARTS[AUTOMODEL], re.MULTILINE)
    named = [name for names, *_ in rows for name in re.findall(r"`([\w.]+)`", names)]
    assert sorted(named) == sorted(PACKING)
    for names, place, shown in rows:
        assert "`" in place, names
        assert named_tests(shown), names


@pytest.mark.parametrize("test", named_tests(PAGE), ids=lambda test: "::".join(test))
def test_named_test_exists(test):
    assert not missing_of(test)


@pytest.mark.parametrize("file", FILES)
def test_named_file_exists(file):
    assert (ROOT / file).is_file()


@pytest.mark.parametrize("module", [*MODULES, AUTOMODEL])
def test_named_fields_and_functions_exist(module):
    known = members()
    for place in re.findall(r"^\| `.+?\| (.+?) \|", PARTS[module], re.MULTILINE):
        for owner, member in re.findall(r"`([A-Z]\w+)\.(\w+)", place):
            assert member in known[owner], (owner, member)
        for name, file in re.findall(r"`(\w+)` in `(megapack/[\w/]+\.py)`", place):
            assert name in defined(file), (name, file)
        for name in re.findall(r"`([A-Z]\w+)`", place):
            assert name in known or name in defined("megapack/batch/microbatch.py"), name


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("megapack/records/thd_row.py", ["tokens", "labels", "loss_mask", "position_ids"]),
        ("megapack/records/thd_row.py", ["cu_seqlens", "cu_seqlens_padded", "max_seqlen"]),
        ("megapack/batch/microbatch.py", ["row_mask"]),
        ("megapack/store/schema.py", ["segment_granularity"]),
        ("megapack/conversation/config.py", ["format", "chat_template", "pad_token"]),
    ],
)
def test_fields_of_the_packed_rows_exist(file, names):
    fields = frozenset().union(*(members()[name] for name in defined(file) & members().keys()))
    assert set(names) <= fields
