"""A writer process for tests of the store.

`digests` prints the keys of fixed parts. `commit URI TAG COUNT` commits COUNT versions (0: until
killed) and prints the number of each. Every row of a version begins with the same number, which
the version's manifest names too, so that a mixture of versions shows.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from megapack.store.location import open_location
from megapack.store.manifest import Contents
from megapack.store.schema import SchemaId
from megapack.store.sinks import row_counts
from megapack.store.versions import commit
from tests.support.store_rows import INFO, put_rows

PARTS = 3
ROWS = 5


def main(arguments: list[str]) -> None:
    if arguments[0] == "digests":
        with TemporaryDirectory() as folder:
            location = open_location(Path(folder))
            for start in (0, 100):
                _say(put_rows(location, range(start, start + 60), group_records=7).key)
        return
    uri, tag, count = arguments[1], int(arguments[2]), int(arguments[3])
    location = open_location(uri)
    done = 0
    while not count or done < count:
        generation = tag * 100_000 + done
        parts = [
            put_rows(location, [generation] * ROWS, group_records=1 + number)
            for number in range(PARTS)
        ]
        contents = Contents(
            schema_id=SchemaId.PACKED_ROWS,
            kind="dataset",
            address=f"{generation}",
            parts=parts,
            counts=row_counts(parts),
            settings={"generation": generation},
            packed=INFO,
        )
        _say(str(commit(location, contents.manifest()).version))
        done += 1


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
