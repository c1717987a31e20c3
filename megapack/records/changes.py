"""`Changes`: what a version of a dataset has more, less and other than the one before it."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

_NAMED = 5


class FileChanges(BaseModel):
    """Source files, told apart by content: a renamed or touched file is unchanged.

    Attributes:
        new: files whose content was not there before.
        changed: files that were there under the same uri with another content.
        removed: files whose content is gone.
        unchanged: number of the others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: int = 0

    @classmethod
    def between(cls, before: Mapping[str, str], after: Mapping[str, str]) -> "FileChanges":
        """Compare two versions.

        >>> FileChanges.between({"a": "1", "b": "2"}, {"c": "1", "b": "3"}).changed
        ('b',)

        Args:
            before: digest of each file's content by uri.
            after: likewise.
        """
        old, new = set(before.values()), set(after.values())
        appeared = sorted(uri for uri, content in after.items() if content not in old)
        gone = sorted(uri for uri, content in before.items() if content not in new)
        return cls(
            new=tuple(uri for uri in appeared if uri not in before),
            changed=tuple(uri for uri in appeared if uri in before),
            removed=tuple(uri for uri in gone if uri not in after),
            unchanged=len(after) - len(appeared),
        )


class Changes(BaseModel):
    """What a refresh found and did.

    Attributes:
        base: version that it started from, 0 when there was none.
        because: why all rows were packed anew, one line a reason; empty when they were not.
        files: source files.
        documents_added: places of documents that the base did not have.
        documents_removed: places of documents of the base that are gone.
        documents_kept: places of documents that stay in rows that were not touched.
        documents_repacked: places of documents that the base had too, in new rows.
        parts_kept: parts of rows shared with the base.
        parts_new: parts of rows written.
        parts_dissolved: parts of the base whose rows held something that is gone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: int = Field(ge=0)
    because: tuple[str, ...] = ()
    files: FileChanges = FileChanges()
    documents_added: int = 0
    documents_removed: int = 0
    documents_kept: int = 0
    documents_repacked: int = 0
    parts_kept: int = 0
    parts_new: int = 0
    parts_dissolved: int = 0

    def with_parts(self, num_parts: int) -> "Changes":
        """The same, once the number of all parts of rows is known."""
        return self.model_copy(update={"parts_new": num_parts - self.parts_kept})

    def lines(self) -> list[str]:
        """One line an event, `key=value`."""
        files = self.files
        found = [self._how()]
        found += [f"packed anew because: {reason}" for reason in self.because]
        found.append(
            f"files new={len(files.new)} changed={len(files.changed)} "
            f"removed={len(files.removed)} unchanged={files.unchanged}"
        )
        for name in ("new", "changed", "removed"):
            uris: tuple[str, ...] = getattr(files, name)
            found += [f"file {name}: {uri}" for uri in uris[:_NAMED]]
            if len(uris) > _NAMED:
                found.append(f"file {name}: and {len(uris) - _NAMED} more")
        found += [
            f"documents added={self.documents_added} removed={self.documents_removed}",
            f"documents in rows kept as they were={self.documents_kept}",
        ]
        if self.documents_repacked:
            why = (
                "with all others" if self.because else "because their part of rows lost a document"
            )
            found.append(f"documents packed again {why}={self.documents_repacked}")
        found.append(
            f"parts of rows kept={self.parts_kept} new={self.parts_new} "
            f"dissolved={self.parts_dissolved}"
        )
        return found

    def short(self) -> str:
        """The same in a few words, for a list of versions."""
        told = f"{self.documents_added:,} documents added, {self.documents_removed:,} removed"
        return f"{told}, all packed anew" if self.because and self.base else told

    def _how(self) -> str:
        if not self.base:
            return "refresh: the first version"
        if self.because:
            return f"refresh of version {self.base}: all rows packed anew"
        return f"refresh of version {self.base}: parts of rows that lost no document are kept"
