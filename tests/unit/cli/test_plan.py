import gzip
import re

import polars as pl
import pytest
import zstandard

from megapack.cli import main as cli
from megapack.steps.plan_job import plan_job
from megapack.steps.prepare import Watcher, prepare
from megapack.steps.report import packing_report
from tests.support.prepare_jobs import line, prepare_job


def chat(number):
    """A conversation whose length repeats every seven."""
    words = " ".join(f"w{(number + i) % 50}" for i in range(1 + number % 7))
    return line(("user", f"w{number % 50}"), ("assistant", words))


def long_chat():
    turns = [("user", "w1 w2"), ("assistant", " ".join(["w3"] * 20))] * 8
    return line(*turns)


def lines_file(folder, name, lines):
    file = folder / name
    data = "".join(f"{one}\n" for one in lines).encode()
    if name.endswith(".gz"):
        data = gzip.compress(data)
    if name.endswith(".zst"):
        data = zstandard.compress(data)
    file.write_bytes(data)
    return file


def planned(job, records=None):
    return plan_job(job, records=records, watcher=Watcher())


def test_plan_of_all_records_is_what_the_job_makes(tmp_path):
    lines = [chat(number) for number in range(300)] + ["no json", long_chat()]
    source = lines_file(tmp_path, "chats.jsonl", lines)
    job = prepare_job(tmp_path, source, validation_fraction=0.2)
    plan = planned(job)
    ref = prepare(job).dataset
    report = packing_report(ref)
    assert plan.exact
    assert plan.documents == report.documents_placed
    assert plan.tokens == ref.num_real_tokens
    assert plan.targets == ref.num_target_tokens
    assert (plan.rows, plan.train_rows) == (ref.num_rows, report.splits[0].rows)
    assert plan.drops == dict(report.drops.documents)
    assert plan.fill == ref.num_real_tokens / (ref.num_rows * 64)


def test_a_folder_smaller_than_the_sample_is_read_whole(tmp_path):
    # Records of the large file are long, so that by its bytes it would be asked for nearly all.
    folder = tmp_path / "in"
    folder.mkdir()
    lines_file(folder, "many.jsonl", [chat(number) for number in range(90)])
    lines_file(folder, "few.jsonl", [long_chat() + " " * 20_000 for _ in range(3)])
    lines_file(folder, "packed.jsonl.gz", [chat(number) for number in range(50)])
    (one,) = planned(prepare_job(tmp_path, folder), records=150).sources
    assert (one.basis.records, one.basis.share) == (143, 1.0)


def test_a_file_that_runs_out_hands_its_part_of_the_sample_on(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    lines_file(folder, "many.jsonl", [chat(number) for number in range(90)])
    lines_file(folder, "few.jsonl", [long_chat() + " " * 20_000 for _ in range(3)])
    (one,) = planned(prepare_job(tmp_path, folder), records=40).sources
    assert 40 <= one.basis.records <= 41


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_plan_of_a_sample_tells_the_whole(tmp_path, suffix):
    source = lines_file(tmp_path, f"chats{suffix}", [chat(number) for number in range(600)])
    job = prepare_job(tmp_path, source, validation_fraction=0.0, pack={"row_length": 32})
    plan, ref = planned(job, records=120), prepare(job).dataset
    (one,) = plan.sources
    assert one.basis.records == 120
    assert 0.19 < one.basis.share < 0.21
    assert not plan.exact
    assert plan.documents == pytest.approx(600, rel=0.05)
    assert plan.tokens == pytest.approx(ref.num_real_tokens, rel=0.05)
    assert plan.rows == pytest.approx(ref.num_rows, rel=0.05)


def test_plan_of_a_parquet_source_tells_the_whole(tmp_path):
    records = [{"instruction": f"w{n % 50}", "output": "w1 w2"} for n in range(500)]
    pl.DataFrame(records).write_parquet(tmp_path / "chats.parquet")
    job = prepare_job(tmp_path, tmp_path / "chats.parquet", validation_fraction=0.0)
    plan = planned(job, records=100)
    assert plan.sources[0].basis.share == 0.2
    assert plan.documents == 500


def test_plan_scales_each_source_by_its_own_share(tmp_path):
    few = lines_file(tmp_path, "few.jsonl", [chat(number) for number in range(70)])
    many = lines_file(tmp_path, "many.jsonl", [chat(number) for number in range(700)])
    sources = [{"uri": str(few), "name": "few"}, {"uri": str(many), "name": "many"}]
    plan = planned(prepare_job(tmp_path, *sources, validation_fraction=0.0), records=70)
    assert plan.sources[0].documents == 70
    assert plan.sources[1].documents == pytest.approx(700, rel=0.05)


def test_plan_writes_nothing_to_the_store(tmp_path, capsys):
    source = lines_file(tmp_path, "chats.jsonl", [chat(number) for number in range(20)])
    job = prepare_job(tmp_path, source, validation_fraction=0.0)
    job.save(tmp_path / "job.json")
    assert cli.main(["plan", str(tmp_path / "job.json")]) == 0
    assert not (tmp_path / "store").exists()
    text = capsys.readouterr().out
    assert text.startswith("would make ")
    assert "all 20 records, 1 file of" in text
    assert "say --global-batch-rows N" in text


def test_plan_twice_says_the_same(tmp_path, capsys):
    source = lines_file(tmp_path, "chats.jsonl", [chat(number) for number in range(200)])
    prepare_job(tmp_path, source).save(tmp_path / "job.json")
    told = []
    for _ in range(2):
        assert cli.main(["plan", str(tmp_path / "job.json"), "--sample", "50"]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    assert "told from the first 50 records: 2" in told[0]


def test_plan_says_steps_and_tokens_of_a_step(tmp_path, capsys):
    source = lines_file(tmp_path, "chats.jsonl", [chat(number) for number in range(200)])
    job = prepare_job(tmp_path, source, validation_fraction=0.0)
    job.save(tmp_path / "job.json")
    arguments = ["plan", str(tmp_path / "job.json"), "--all", "--global-batch-rows", "4"]
    assert cli.main(arguments) == 0
    text = capsys.readouterr().out
    ref = prepare(job).dataset
    steps, tokens = ref.num_rows / 4, round(ref.num_real_tokens / ref.num_rows * 4)
    assert f"steps      {steps:,.1f} an epoch over {ref.num_rows:,} training rows" in text
    assert f"{tokens:,} real tokens a step in 256 positions" in text
    assert "more than once" not in text
    larger = str(ref.num_rows + 1)
    assert cli.main([*arguments[:-1], larger]) == 0
    warning = (
        f"warning: a step of {larger} rows reads some of the {ref.num_rows} training rows more"
    )
    assert warning in capsys.readouterr().out


def test_plan_compares_policies_when_documents_are_long(tmp_path):
    lines = [long_chat().replace("w2", f"w{number}") for number in range(4, 10)]
    lines += [chat(number) for number in range(30)]
    source = lines_file(tmp_path, "chats.jsonl", lines)
    for policy in ("split", "drop", "error"):
        job = prepare_job(
            tmp_path, source, tokenize={"long_documents": policy}, validation_fraction=0.0
        )
        plan = planned(job)
        assert plan.long_conversations == 6
        kept = {one.policy.value: one for one in plan.policies}
        assert kept["split"].trained == 1.0
        assert kept["split"].dropped == 0
        assert kept["drop"].dropped == 6
        assert 0 < kept["drop"].trained < kept["truncate"].trained < 1.0


def test_plan_tells_the_padding_of_each_context_parallel_size(tmp_path):
    # user token, word, end, answer token, word, end: six positions, in slots of 6, 8, 8 and 16.
    source = lines_file(tmp_path, "chats.jsonl", [chat(7 * number) for number in range(50)])
    plan = planned(prepare_job(tmp_path, source, validation_fraction=0.0))
    assert plan.padding == pytest.approx({1: 0.0, 2: 0.25, 4: 0.25, 8: 0.625})


def test_plan_of_a_wrong_file_names_the_file_and_not_its_copy(tmp_path, capsys):
    source = lines_file(tmp_path, "chats.jsonl", ['{"text": "w1"}'] * 3)
    prepare_job(tmp_path, source).save(tmp_path / "job.json")
    assert cli.main(["plan", str(tmp_path / "job.json")]) == 2
    error = capsys.readouterr().err
    assert f"source file {source}: expected records of the shape" in error
    assert "megapack-plan-" not in error


def test_plan_needs_no_store(tmp_path, capsys):
    source = lines_file(tmp_path, "chats.jsonl", [chat(number) for number in range(60)])
    job = prepare_job(tmp_path, source)
    flags = ["--source", str(source), "--tokenizer", job.tokenizer, "--row-length", "64"]
    assert cli.main(["plan", *flags, "--long-documents", "drop"]) == 0
    assert re.search(r"would make (about )?\d+ rows of 64 positions", capsys.readouterr().out)
    save = ["--save", str(tmp_path / "job.json")]
    assert cli.main(["plan", *flags, "--long-documents", "drop", *save]) == 2
    assert "--store DIR" in capsys.readouterr().err
