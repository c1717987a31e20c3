"""`docs/coverage.md`: every documented name has its row, and what a row names exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
ROWS = {
    row[0]: row[1:] for row in re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
}
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
FILES = sorted(set(re.findall(r"`((?:megapack|tests|docs)/[\w./]+)`", PAGE)))
NAMES = [
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


@pytest.mark.parametrize("name", NAMES)
def test_every_documented_name_has_a_row_with_a_place_and_a_test_or_a_reason(name):
    place, shown = ROWS[name]
    assert "megapack" in place or "gone" in place or "`" in place or place == "the same"
    assert "tests/" in shown or (shown == "none needed" and "gone" in place)


def test_the_prompt_configuration_has_a_section_of_its_own():
    assert "## `_PromptConfig`" in PAGE


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_named_test_exists(file, name):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert name in functions


@pytest.mark.parametrize("file", FILES)
def test_named_file_exists(file):
    assert (ROOT / file).is_file()


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
def test_named_fields_exist(file, names):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    fields = {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert set(names) <= fields
