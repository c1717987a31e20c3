import pytest

from megapack.errors import ConfigError, DataError
from megapack.store.location import open_location
from megapack.store.payload_vocabulary import read_vocabulary, write_vocabulary


def test_equal_maps_are_equal_files_and_come_back(tmp_path):
    location = open_location(tmp_path)
    vocabulary = {"é": 2, "a": 0, '"\n': 1, "\ud800": 3}
    part = write_vocabulary(location, vocabulary)
    assert write_vocabulary(location, dict(reversed(vocabulary.items()))) == part
    assert part.counts["num_tokens"] == 4
    assert read_vocabulary(location, [part]) == vocabulary


def test_missing_and_altered_maps_are_refused(tmp_path):
    location = open_location(tmp_path)
    with pytest.raises(ConfigError, match="expected a vocabulary beside the payload, found none"):
        read_vocabulary(location, [])
    part = write_vocabulary(location, {"a": 0})
    location.put(part.key, b"?")
    with pytest.raises(DataError, match=r"vocabulary\.json\.zst.*altered"):
        read_vocabulary(location, [part])
