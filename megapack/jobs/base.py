"""What every job shares: frozen, unknown fields refused, one file form, one error form."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from megapack.errors import ConfigError
from megapack.jobs.explain import explain


class Job(BaseModel):
    """Base of job models. The JSON file of a job is the same for people, Prefect and workers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a job file.

        Raises:
            ConfigError: the file is missing, is not JSON, or a field is wrong; each fault on its
                own line with the field's path.
        """
        file = Path(path)
        try:
            return cls.model_validate_json(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"expected a job file, found none at {file}: {error}.") from error
        except ValidationError as error:
            raise ConfigError(
                f"{file} is no valid {cls.__name__}:\n{explain(error, cls)}"
            ) from error

    def save(self, path: str | Path) -> None:
        """Write the job file."""
        Path(path).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")
