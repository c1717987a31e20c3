"""Reading Parquet parts in place: what every reader of a version shares."""

import hashlib
from collections.abc import Sequence
from enum import StrEnum

import polars as pl

from megapack.errors import DataError, StoreError
from megapack.store.location import Location
from megapack.store.manifest import Part

_ADVICE = "Restore the part, or delete it and run the step that writes it again."


class Verify(StrEnum):
    """How a part is checked before it is first read."""

    SIZE = "size"
    SHA256 = "sha256"
    DISCARD = "discard"
    """SHA-256; an altered part is deleted, so that the step that writes it finds it missing."""


class IncompletePartError(StoreError):
    """A part of a version is missing, or has another size than recorded."""


class PartReader:
    """Reads Parquet parts in place, each checked before its first use."""

    def __init__(self, location: Location, *, verify: Verify = Verify.SIZE) -> None:
        self._location = location
        self._verify = verify
        self._checked: set[str] = set()

    def read(
        self,
        part: Part,
        *,
        rows: tuple[int, int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> pl.DataFrame:
        """Records of a part.

        Args:
            part: as the manifest has it.
            rows: first record and number of records, all by default.
            columns: column names, all by default.

        Raises:
            StoreError: the store failed; an `IncompletePartError` when the part is missing or has
                another size.
            DataError: the part has another digest, is no readable Parquet file, or has other
                records than recorded.
        """
        self._check(part)
        source = self._location.parquet_source(part.key)
        offset, count = rows or (0, part.num_records)
        where = f"{self._location.uri}/{part.key}"
        try:
            scan = pl.scan_parquet(
                source.path,
                storage_options=None
                if source.storage_options is None
                else dict(source.storage_options),
                glob=False,
                # Readers of single row groups bring threads of their own; splitting up a group
                # among polars' threads costs more than it gains.
                parallel="none" if rows else "auto",
            )
            chosen = scan if columns is None else scan.select(columns)
            frame = chosen.slice(offset, count if rows else None).collect()
        except OSError as error:
            raise StoreError(f"{where}: could not read the part: {_one_line(error)}") from error
        # Damaged bytes make polars panic, too, and that is no Exception.
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise DataError(
                f"{where}: expected a Parquet part of {part.num_records} records, found a file "
                f"that polars cannot read: {_one_line(error)}. {_ADVICE}"
            ) from error
        if frame.height != count:
            raise DataError(
                f"{where}: expected {count} records from record {offset}, found {frame.height}. "
                f"{_ADVICE}"
            )
        return frame

    def _check(self, part: Part) -> None:
        if part.key in self._checked:
            return
        where = f"{self._location.uri}/{part.key}"
        size = self._location.size(part.key)
        if size != part.size:
            found = "nothing" if size is None else f"{size} bytes"
            raise IncompletePartError(
                f"{where}: expected {part.size} bytes, found {found}. The version is incomplete: "
                "restore the part, or run the step that writes it again."
            )
        if self._verify is not Verify.SIZE:
            self._check_digest(part, where=where)
        self._checked.add(part.key)

    def _check_digest(self, part: Part, *, where: str) -> None:
        if self._digest(part) == part.sha256:
            return
        # Asked twice, so that an answer damaged on its way does not cost a sound part.
        found = self._digest(part)
        if found == part.sha256:
            return
        advice = _ADVICE
        if self._verify is Verify.DISCARD:
            self._location.delete(part.key)
            advice = "It was deleted: run again, and the step that writes it writes it anew."
        raise DataError(
            f"{where}: expected sha256 {part.sha256}, found {found}: the part was altered. {advice}"
        )

    def _digest(self, part: Part) -> str:
        return hashlib.sha256(self._location.get(part.key)).hexdigest()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
