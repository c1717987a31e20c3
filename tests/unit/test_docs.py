"""What pages promise is there: tests, names in snippets, and what may change in a run."""

import ast
import re

import pytest

from megapack.jobs.addresses import train_address
from megapack.jobs.train import TrainJob, TrainSettings
from megapack.records.refs import DatasetRef
from tests.support.pages import ROOT, defined, missing_of, named_tests, page

DESIGN = page("design.md")


def test_every_law_names_a_test():
    rows = re.findall(r"^\| (\d+) [^|]+\|([^|]+)\|$", DESIGN, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 11))
    assert all("tests/" in tests for _, tests in rows)


def test_every_fault_of_others_names_a_test():
    table = DESIGN.split("## Faults that others have had")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \|$", table, re.MULTILINE)[2:]
    assert len(rows) >= 16
    assert all("tests/" in tests for *_, tests in rows)


@pytest.mark.parametrize("test", named_tests(DESIGN), ids=lambda test: "::".join(test[:2]))
def test_named_test_exists(test):
    assert not missing_of(test)


PYTHON = [
    pytest.param(block, id=f"{file.name}-{number}")
    for file in sorted(ROOT.glob("docs/*.md"))
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", file.read_text(encoding="utf-8"), re.M | re.S)
    )
]


def imported(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    froms = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    return {name.name for node in froms for name in node.names}


@pytest.mark.parametrize("block", PYTHON)
def test_names_that_python_snippets_import_exist(block):
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("megapack."):
            file = f"{str(node.module).replace('.', '/')}.py"
            assert {name.name for name in node.names} <= defined(file) | imported(file), file


def changes() -> dict[str, list[str]]:
    """The rows of the table of what may change, column by column."""
    table = page("training.md").split("| may change |")[1].split("\n\n")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines()[2:]]
    return dict(zip(("may", "may not"), map(list, zip(*rows, strict=True)), strict=True))


OTHERS: dict[str, object] = {
    "parallel": {"tensor_model_parallel_size": 2},
    "backend": "portable",
    "outputs": {"logits": "by_chunks"},
    "optimizer": {"lr": 0.5},
    "loss": "sequence_mean",
    "guard": {"on_spike": "skip"},
    "saving": "wait",
    "straggler_timing": "every-step",
    "draft": {},
    "starting_digest": "0" * 64,
    "starting_model": "/elsewhere",
    "steps": 8,
    "seed": 8,
    "global_batch_rows": 8,
    "rows_per_microbatch": 2,
    "dense_token_budget": 8,
    "evaluate_every": 8,
    "evaluation_rows": 8,
    "checkpoint_every": 8,
    "keep_checkpoints": 8,
    "stop_within_s": 8.0,
    "collective_timeout_s": 8.0,
}
SHAPE = {
    "num_layers": 2,
    "hidden_size": 16,
    "ffn_hidden_size": 16,
    "num_attention_heads": 2,
    "num_query_groups": 2,
}


def address(change: dict[str, object]) -> str:
    plain = {
        "model": SHAPE,
        "steps": 4,
        "global_batch_rows": 4,
        "starting_model": "/here",
        "starting_digest": "1" * 64,
    }
    dataset = DatasetRef(
        uri="d", version=1, digest="a", num_rows=1, num_real_tokens=1, num_target_tokens=1
    )
    settings = TrainSettings.model_validate(plain | change)
    return train_address(TrainJob(dataset=dataset, settings=settings, output="o"))


def test_every_field_of_a_run_has_another_value_here():
    assert OTHERS.keys() | {"model"} == TrainSettings.model_fields.keys()


@pytest.mark.parametrize("field", OTHERS)
def test_the_table_of_what_may_change_says_what_the_address_does(field):
    column = "may" if address({field: OTHERS[field]}) == address({}) else "may not"
    assert any(f"`{field}`" in cell for cell in changes()[column])
    other = changes()["may not" if column == "may" else "may"]
    assert not any(f"`{field}`" in cell for cell in other)


@pytest.mark.parametrize(("field", "value"), [("recompute", "full"), ("offload", ["qkv_linear"])])
def test_recompute_and_offload_may_change(field, value):
    changed = {"model": {**SHAPE, field: value}, "backend": "te"}
    assert address(changed) == address({})
    assert any(f"`model.{field}`" in cell for cell in changes()["may"])
