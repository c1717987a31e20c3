import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from megapack.steps.launch.protocol import RunFiles
from megapack.steps.launch.tail import KEPT_LINES, LineTail, Relay


def test_tail_waits_for_the_end_of_a_line(tmp_path):
    file = tmp_path / "log"
    tail = LineTail(file)
    assert tail.read() == []
    file.write_bytes(b"one\ntw")
    assert tail.read() == ["one"]
    with file.open("ab") as log:
        log.write(b"o\r\nthree")
    assert tail.read() == ["two"]
    assert tail.read(last="flush") == ["three"]
    assert tail.read(last="flush") == []


def test_tail_replaces_bytes_that_are_not_utf8(tmp_path):
    (tmp_path / "log").write_bytes(b"a\xff\n")
    assert LineTail(tmp_path / "log").read() == ["a\ufffd"]


@given(
    st.lists(st.text(alphabet="ab", max_size=4), max_size=8),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.lists(st.integers(0, 40), max_size=6),
)
def test_tail_lines_do_not_depend_on_when_it_reads(tmp_path_factory, lines, end, cuts):
    data = "".join(line + end for line in lines).encode()
    file = tmp_path_factory.mktemp("tail") / "log"
    tail = LineTail(file)
    read: list[str] = []
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for start, stop in itertools.pairwise(edges):
        with file.open("ab") as log:
            log.write(data[start:stop])
        read += tail.read()
    assert read + tail.read(last="flush") == lines


def test_relay_keeps_the_last_lines_of_each_rank(tmp_path):
    files = RunFiles(scratch=tmp_path)
    files.folder.mkdir()
    files.log(1).write_text("".join(f"line {i}\n" for i in range(KEPT_LINES + 3)))
    files.log(-1).write_text("agent\n")
    files.metrics.write_text(json.dumps({"step": 1}) + '\n{"step": ')
    lines, metrics = [], []
    relay = Relay(files, 2, on_line=lambda r, t: lines.append((r, t)), on_metric=metrics.append)
    relay.pump()
    assert lines[0] == (-1, "agent")
    assert len(lines) == KEPT_LINES + 4
    assert relay.tail(1)[0] == "line 3"
    assert len(relay.tail(1)) == KEPT_LINES
    assert relay.tail(0) == ()
    assert metrics == [{"step": 1}]
