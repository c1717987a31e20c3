import json

import pytest

from megapack.engine.metric_log import MetricLog


def test_metric_log_writes_lines_and_keeps_a_history_without_durations(tmp_path):
    log = MetricLog(tmp_path / "metrics.jsonl")
    log.write({"kind": "train", "step": 1, "loss": 2.5, "step_s": 0.1, "tokens_per_s": 9.0})
    log.write({"kind": "evaluation", "step": 1, "loss": None})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["step_s"] == 0.1
    (tmp_path / "history.jsonl").write_text(log.text())
    history = MetricLog.load(tmp_path / "history.jsonl")
    assert history == [
        {"kind": "train", "step": 1, "loss": 2.5},
        {"kind": "evaluation", "step": 1, "loss": None},
    ]


def test_metric_log_begins_with_the_history_it_replays(tmp_path):
    first = MetricLog(None)
    first.write({"step": 1, "loss": 2.5, "step_s": 0.1})
    (tmp_path / "history.jsonl").write_text(first.text())
    second = MetricLog(tmp_path / "metrics.jsonl")
    second.replay(MetricLog.load(tmp_path / "history.jsonl"))
    second.write({"step": 2, "loss": 2.0})
    (tmp_path / "both.jsonl").write_text(second.text())
    assert [m["step"] for m in MetricLog.load(tmp_path / "both.jsonl")] == [1, 2]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_metric_log_refuses_a_number_that_is_not_finite(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        MetricLog(tmp_path / "metrics.jsonl").write({"loss": float("nan")})
