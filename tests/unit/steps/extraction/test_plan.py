import hashlib

import pytest

from megapack.cli import main as cli
from megapack.errors import ConfigError
from megapack.jobs.extract import ExtractRequest, PayloadChoice
from megapack.jobs.moe import MoeJob
from megapack.records.payload import PayloadDtype
from megapack.records.refs import FolderRef
from megapack.steps.extraction.checks import check_extract_job
from megapack.steps.extraction.plan import plan_extraction, plan_lines
from megapack.steps.extraction.rate import MeasuredRun, Told, forward_flops
from megapack.steps.extraction.request import resolve_extraction
from megapack.steps.hugging_face.names import EMBEDDING, tensor_shapes
from megapack.store.location import open_location
from megapack.store.manifest import Contents, Part
from megapack.store.payload_parts import PART_KINDS
from megapack.store.schema import PayloadInfo
from megapack.store.versions import commit
from tests.support.hf_folder import write_folder
from tests.support.tiny_dataset import MODEL, layout, make_dataset, make_rows

CHOICE = {"top_k": 8, "hidden": "bf16"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A dataset and a teacher's folder."""
    folder = tmp_path_factory.mktemp("inputs")
    dataset = make_dataset(folder / "data", make_rows(9, seed=1), make_rows(2, seed=2))
    return dataset.uri, str(write_folder(folder / "teacher"))


def request_of(inputs, store, **extract):
    settings = {"payload": CHOICE, "shard_rows": 3, **extract}
    return ExtractRequest(dataset=inputs[0], teacher=inputs[1], store=str(store), extract=settings)


def test_plan_counts_documents_rows_shards_and_bytes_of_each_kind(inputs, tmp_path):
    job = resolve_extraction(request_of(inputs, tmp_path))
    plan = plan_extraction(job)
    rows = [*make_rows(9, seed=1), *make_rows(2, seed=2)]
    assert plan.documents == sum(row.layout.num_segments for row in rows)
    assert plan.positions == plan.tokens_run == sum(row.num_real_tokens for row in rows)
    assert (plan.rows, plan.shards, plan.ranks) == (11, 4, 1)
    assert [kind.width for kind, _ in plan.size.kinds] == [8, 32]
    assert plan.size.lm_head == 107 * 32 * 4
    assert plan.size.total == sum(size for _, size in plan.size.kinds) + (
        plan.size.index + plan.size.lm_head + plan.size.vocabulary
    )
    lines = "\n".join(plan_lines(plan))
    assert f"would extract {plan.documents} documents of {plan.positions} positions" in lines
    assert "4 shards of at most 3 rows" in lines
    assert "time       not known" in lines


def test_shards_take_about_128_mib_or_a_million_positions(inputs, tmp_path):
    def rows(**payload):
        request = request_of(inputs, tmp_path, payload=payload, shard_rows=None)
        return plan_extraction(resolve_extraction(request)).shard_rows

    assert rows(top_k=None) == 2**20 // 96
    assert rows(top_k=64) == 2**27 // (96 * (64 * (2 + 4) + 4 + 4))
    assert rows(top_k=64, hidden="fp32") == 2**27 // (96 * (64 * 6 + 8 + 32 * 4 + 4))


def test_time_rests_on_a_persons_word_then_on_a_measurement_then_on_operations(inputs, tmp_path):
    job = resolve_extraction(request_of(inputs, tmp_path))
    told = plan_extraction(job, Told(tokens_per_s=50.0, device_flops=1e9))
    assert told.seconds == pytest.approx(told.tokens_run / 50)
    guessed = plan_extraction(job, Told(device_flops=1e9))
    flops = forward_flops(job.model, vocab_size=107, tokens=told.tokens_run, pairs=pairs())
    assert guessed.seconds == pytest.approx(flops / 1e9)
    assert "1e+09 a second on each of 1 ranks" in guessed.rate.basis

    half = resolve_extraction(request_of(inputs, tmp_path, max_rows=3))
    commit_run(half, seconds=4.0, tokens=100)
    measured = plan_extraction(job, Told(device_flops=1e9))
    assert measured.rate.tokens_per_s == 25.0
    assert "an extraction with this teacher" in measured.rate.basis
    two = plan_extraction(resolve_extraction(request_of(inputs, tmp_path, parallel=layout(dp=2))))
    assert two.rate.tokens_per_s == 50.0
    assert "another layout of 1 ranks" in two.rate.basis
    other = FolderRef(uri=job.checkpoint.uri, digest="another")
    assert plan_extraction(job.model_copy(update={"checkpoint": other})).rate is None


def test_bytes_rest_on_what_an_earlier_payload_of_the_teacher_took(inputs, tmp_path):
    job = resolve_extraction(request_of(inputs, tmp_path))
    guessed = plan_extraction(job)
    assert len(guessed.size.guessed) == 2
    half = resolve_extraction(request_of(inputs, tmp_path, max_rows=3))
    size, positions = 5000, plan_extraction(half).positions
    kinds = tuple(kind for kind, _ in guessed.size.kinds)
    commit_run(half, seconds=4.0, tokens=100, kinds=kinds, positions=positions, size=size)
    plan = plan_extraction(job)
    assert plan.size.guessed == ()
    expected = round(size / positions * plan.positions)
    assert [found for _, found in plan.size.kinds] == [expected, expected]
    limited = job.settings.model_copy(update={"max_bytes": plan.size.total - 1})
    with pytest.raises(ConfigError, match="max_bytes"):
        check_extract_job(job.model_copy(update={"settings": limited}))
    enough = job.settings.model_copy(update={"max_bytes": plan.size.total})
    check_extract_job(job.model_copy(update={"settings": enough}))


def pairs():
    rows = [*make_rows(9, seed=1), *make_rows(2, seed=2)]
    return sum(int(n) * (int(n) + 1) // 2 for row in rows for n in row.layout.lengths)


def commit_run(job, *, seconds, tokens, kinds=(), positions=0, size=0):
    """A payload as far as a plan looks at it."""
    location = open_location(job.output)
    parts = []
    for kind in kinds:
        data = kind.kind.value.encode().ljust(size)
        sha256 = hashlib.sha256(data).hexdigest()
        location.put(f"parts/{sha256}", data)
        part_kind = PART_KINDS[kind.kind]
        parts.append(Part(key=f"parts/{sha256}", size=size, sha256=sha256, kind=part_kind))
    info = kinds and PayloadInfo(
        kinds=kinds, temperature=1.0, vocab_size=107, tokenizer_digest="tiny", teachers=("t",)
    )
    run = MeasuredRun(ranks=1, tokens=tokens, compute_s=1, write_wait_s=1, seconds=seconds)
    contents = Contents(
        schema_id="megapack.teacher_payload/2",
        kind="payload",
        parts=parts,
        address="x",
        counts={"num_positions": positions},
        payload=info or None,
        settings={"job": job.model_dump(mode="json"), "run": run.model_dump()},
        parents={"checkpoint": job.checkpoint.digest},
    )
    commit(location, contents.manifest())


def test_operations_are_two_for_every_parameter_of_a_matrix():
    model = MODEL.model_copy(update={"vocab_size": 107, "qk_layernorm": True})
    shapes = tensor_shapes(model)
    matrices = sum(
        shape[0] * shape[1]
        for name, shape in shapes.items()
        if len(shape) == 2 and name != EMBEDDING
    )
    assert forward_flops(model, vocab_size=107, tokens=10, pairs=0) == 20 * matrices
    assert forward_flops(model, vocab_size=107, tokens=0, pairs=3) == 3 * 4 * 2 * 4 * 8
    moe = MoeJob(num_experts=4, experts_per_token=2, expert_ffn_hidden_size=24)
    sparse = model.model_copy(update={"moe": moe})
    mlp = 2 * 3 * 32 * 48
    experts = 2 * (3 * 32 * 2 * 24 + 32 * 4)
    assert forward_flops(sparse, vocab_size=107, tokens=1, pairs=0) == 2 * (
        matrices - mlp + experts
    )


def test_what_is_over_the_limit_is_refused_with_both_numbers(inputs, tmp_path):
    job = resolve_extraction(request_of(inputs, tmp_path))
    total = plan_extraction(job).size.total
    for limit, refused in ((total, False), (total - 1, True)):
        settings = job.settings.model_copy(update={"max_bytes": limit})
        plan = plan_extraction(job.model_copy(update={"settings": settings}))
        if not refused:
            plan.check()
            continue
        with pytest.raises(
            ConfigError, match=rf"{limit:,} bytes.* at least the {total:,} or so that"
        ):
            plan.check()


def test_more_top_tokens_than_the_vocabulary_are_refused(inputs, tmp_path):
    job = resolve_extraction(request_of(inputs, tmp_path, payload={"top_k": 108}))
    with pytest.raises(ConfigError, match=r"top_k = 108, expected at most .* 107"):
        plan_extraction(job)


def test_command_plans_and_refuses_what_is_over_the_limit(inputs, tmp_path, capsys):
    flags = ["--dataset", inputs[0], "--teacher", inputs[1], "--top-k", "8", "--hidden", "fp32"]
    asked = [*flags, "--tokens-per-s", "100", "--set", "extract.shard_rows=4"]
    assert cli.main(["plan", "--extract", *asked]) == 0
    printed = capsys.readouterr().out
    assert "3 shards of at most 4 rows" in printed
    assert "tokens at 100 a second, by the rate that was given" in printed
    limit = ["--set", "extract.max_bytes=1000"]
    assert cli.main(["plan", "--extract", *asked, *limit]) == 2
    said = capsys.readouterr().err
    assert "ExtractSettings.max_bytes = 1,000 bytes, expected at least the" in said
    assert "lower payload.top_k" in said


def test_command_says_which_flags_are_missing(inputs, capsys):
    assert cli.main(["plan", "--extract", "--dataset", inputs[0]]) == 2
    said = capsys.readouterr().err
    assert "--teacher DIR" in said
    assert "--top-k N, --hidden DTYPE or --logits DTYPE" in said
    assert "--dataset" not in said.replace("--dataset DIR", "")


def test_command_saves_the_request_that_the_flow_takes(inputs, tmp_path):
    file = tmp_path / "job.json"
    flags = ["--dataset", inputs[0], "--teacher", inputs[1], "--top-k", "8"]
    asked = [*flags, "--store", str(tmp_path / "out"), "--save", str(file)]
    assert cli.main(["plan", "--extract", *asked]) == 0
    saved = ExtractRequest.load(file)
    assert saved.extract.payload == PayloadChoice(top_k=8, top_k_dtype=PayloadDtype.FP16)
    assert (saved.dataset, saved.teacher) == inputs
    assert cli.main(["plan", "--extract", str(file)]) == 0
