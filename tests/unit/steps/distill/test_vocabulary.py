import json

import numpy as np
import pytest

from megapack.errors import ConfigError
from megapack.steps.distill.vocabulary import (
    NO_TOKEN,
    VocabularyMap,
    map_of_file,
    read_file,
)


def made(pairs, student=4, teacher=5):
    blob = json.dumps(pairs).encode()
    return map_of_file(blob, where="map.json", student=student, teacher=teacher)


def test_pairs_map_both_ways_and_leave_labels_that_do_not_count_alone():
    found = made([[0, 4], [3, 1]])
    assert found.teacher_of.tolist() == [4, NO_TOKEN, NO_TOKEN, 1]
    assert found.student_of.tolist() == [NO_TOKEN, 3, NO_TOKEN, NO_TOKEN, 0]
    labels = np.array([3, -100, 0, 1], np.int32)
    assert found.to_teacher(labels).tolist() == [1, -100, 4, NO_TOKEN]
    assert found.to_teacher(labels).dtype == np.int32


def test_identity_reaches_as_far_as_both_vocabularies():
    found = VocabularyMap.identity(3, 5)
    assert found.teacher_of.tolist() == [0, 1, 2]
    assert found.student_of.tolist() == [0, 1, 2, NO_TOKEN, NO_TOKEN]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([[0, 1], [0, 2]], r"each student id in one pair, found 1 .* the first \[0\]"),
        ([[0, 1], [2, 1]], r"each teacher id in one pair, found 1 .* the first \[1\]"),
        ([[4, 1]], r"student ids in \[0, 4\), found 4"),
        ([[0, -1]], r"teacher ids in \[0, 5\), found -1"),
        ({"0": 1}, "list of pairs"),
        ([[0, 1, 2]], "list of pairs"),
        ([[0, True]], "list of pairs"),
        ([], "list of pairs"),
        ([[0, 10**30]], "ids of 64 bits"),
    ],
)
def test_a_map_that_is_not_one_to_one_in_range_is_refused(pairs, message):
    with pytest.raises(ConfigError, match=message):
        made(pairs)


def test_a_file_that_is_no_json_or_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"map\.json: expected JSON"):
        map_of_file(b"[[0,", where="map.json", student=1, teacher=1)
    with pytest.raises(ConfigError, match=r"map\.json: expected JSON"):
        map_of_file(b"[" * 100_000, where="map.json", student=1, teacher=1)
    with pytest.raises(ConfigError, match="found none"):
        read_file(str(tmp_path / "none.json"))
