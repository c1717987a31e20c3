from pathlib import Path

from megapack.steps.audit_record import found_sound, record_sound
from tests.support.chain import prepared
from tests.support.prepare_jobs import plain_line, prepare_job


def test_sound_version_is_known_until_a_part_is_gone(tmp_path):
    source = tmp_path / "chats.jsonl"
    source.write_text("".join(f"{plain_line(number)}\n" for number in range(6)))
    ref = prepared(prepare_job(tmp_path, source))
    assert not found_sound(ref)
    record_sound(ref)
    assert found_sound(ref)
    assert not found_sound(ref.model_copy(update={"digest": "0" * 64}))
    next((Path(ref.uri) / "parts").iterdir()).unlink()
    assert not found_sound(ref)
