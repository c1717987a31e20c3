"""The data side never loads torch: seen in child processes that do all of its work."""

import subprocess
import sys
import textwrap

import pytest

HEAVY = "sorted({name.split('.')[0] for name in sys.modules} & {'torch','transformers','megatron'})"


def loaded_after(code, tmp_path):
    """Heavy packages in `sys.modules` after a child ran some code."""
    script = textwrap.dedent(code) + f"\nimport sys\nprint('HEAVY', {HEAVY})\n"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1], done.stdout


@pytest.mark.flow
@pytest.mark.timeout(200)
def test_data_steps_on_demo_data_load_no_torch(tmp_path):
    heavy, printed = loaded_after(
        """
        import sys
        from pathlib import Path
        from infra.demo.build import build_demo
        from megapack.jobs.prepare import PrepareJob
        from megapack.steps.audit import audit
        from megapack.steps.pack import pack
        from megapack.steps.split import list_sources, split_source
        from megapack.steps.tokenize import tokenize_part

        folder = Path(sys.argv[1])
        build_demo(folder / "demo", size=200, vocabulary_size=1500)
        for form in ("chat_template", "identity", "nemotron-h-aligned", "nemotron-nano-v2"):
            job = PrepareJob.model_validate({
                "sources": [{"uri": str(folder / "demo/data")}],
                "tokenizer": str(folder / "demo/tokenizer"),
                "tokenize": {"format": form, "long_documents": "split"},
                "pack": {"row_length": 512}, "pack_for": {"context_parallel_size": 2},
                "validation_fraction": 0.1, "store": str(folder / form),
            })
            conversations = [split_source(job, shard) for shard in list_sources(job)]
            documents = [
                tokenize_part(job, ref, index)
                for ref in conversations for index in range(ref.num_parts)
            ]
            dataset = pack(job, conversations=conversations, documents=documents)
            report = audit(dataset)
            report.check()
            print(form, dataset.num_rows, report.num_checks)
        """,
        tmp_path,
    )
    assert heavy == "HEAVY []", printed
    assert [line.split()[0] for line in printed.splitlines()[:4]] == [
        "chat_template",
        "identity",
        "nemotron-h-aligned",
        "nemotron-nano-v2",
    ]
    assert all(int(line.split()[1]) > 0 for line in printed.splitlines()[:4])


@pytest.mark.flow
@pytest.mark.timeout(200)
def test_flows_cli_and_multimodal_packing_load_no_torch(tmp_path):
    heavy, _ = loaded_after(
        """
        import flows.pack_and_train
        import flows.pack_multimodal
        import flows.prepare
        import flows.refresh
        import megapack.cli.main
        import sys
        from pathlib import Path
        from megapack.steps.multimodal.audit import audit_multimodal
        from megapack.steps.multimodal.pack import pack_multimodal
        from megapack.steps.multimodal.report_shown import report_markdown
        from tests.support.shapes_rows import pack_job

        dataset = pack_multimodal(pack_job(Path(sys.argv[1])))
        audit_multimodal(dataset).check()
        assert report_markdown(dataset).count("data:image/png") == 3
        """,
        tmp_path,
    )
    assert heavy == "HEAVY []"
