"""`ModelFolder`: config.json and safetensors files of a Hugging Face model on this machine.

Headers alone are read, until the digest is asked for.
"""

import functools
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from megapack.errors import ConfigError, DataError, StoreError
from megapack.jobs.model import ModelJob
from megapack.records.digest import digest_of
from megapack.steps.hugging_face.config import model_of_config
from megapack.steps.hugging_face.names import EMBEDDING, HEAD, tensor_shapes
from megapack.store.files import sha256_of

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
_SHOWN = 5
_HASH_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHeader:
    """What a file says about one of its tensors.

    Attributes:
        file: name of the file in the folder.
        shape: of the whole tensor.
        dtype: in safetensors' words, such as BF16.
    """

    file: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model that was read up to its headers, and found whole.

    Attributes:
        path: the folder.
        model: its shape.
        tensors: headers by name; those that the model has no use for are left out.
        files: names of the weight files, sorted.
    """

    path: Path
    model: ModelJob
    tensors: Mapping[str, TensorHeader]
    files: tuple[str, ...]

    def digest(self) -> str:
        """Digest of configuration and weight files: 64 hex digits. Reads every byte once.

        The files' names do not count, their content and order do.

        Raises:
            StoreError: a file cannot be read.
        """
        names = (CONFIG, *self.files)
        try:
            with ThreadPoolExecutor(_HASH_THREADS) as pool:
                return digest_of(list(pool.map(lambda name: _sha256(self.path / name), names)))
        except OSError as error:
            raise StoreError(f"could not read the model folder {self.path}: {error}.") from error


def open_folder(uri: str) -> ModelFolder:
    """Read configuration and headers, and refuse what is not the whole model.

    Args:
        uri: local folder.

    Raises:
        ConfigError: no such folder, or a model that megapack cannot represent.
        DataError: a file is damaged; tensors are missing, too many, or of a wrong shape or type.
        StoreError: the folder cannot be read.
    """
    path = _local(uri)
    try:
        model = model_of_config(_json(path / CONFIG), where=str(path / CONFIG))
        files = _weight_files(path)
        tensors = _by_name(_headers(path, files), where=str(path))
    except OSError as error:
        raise StoreError(f"could not read the model folder {path}: {error}.") from error
    return ModelFolder(
        path=path,
        model=model,
        tensors=_checked(tensors, model, where=str(path)),
        files=files,
    )


def _local(uri: str) -> Path:
    scheme, separator, rest = uri.partition("://")
    if separator and scheme != "file":
        raise ConfigError(
            f"starting model {uri}: expected a local folder, found scheme {scheme!r}. Download "
            "its files to a folder that every node sees."
        )
    path = Path("/" + rest.lstrip("/")) if separator else Path(uri).expanduser()
    if not (path / CONFIG).is_file():
        raise ConfigError(
            f"expected a Hugging Face model folder with {CONFIG} at {path}, found none. Names on "
            "a model hub are not looked up: download the files first."
        )
    return path


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"expected JSON in {path}: {error}.") from error
    if not isinstance(value, dict):
        raise ConfigError(f"expected a JSON object in {path}, found {type(value).__name__}.")
    return value


def _weight_files(path: Path) -> tuple[str, ...]:
    """Files of the weights: those of the index, or the one."""
    if not (path / INDEX).is_file():
        if (path / WEIGHTS).is_file():
            return (WEIGHTS,)
        raise ConfigError(
            f"{path}: expected {WEIGHTS} or {INDEX}, found neither. Save the model with "
            "save_pretrained(..., safe_serialization=True); pickled weights are not opened."
        )
    places = _json(path / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise DataError(f"{path / INDEX}: expected a weight_map of names to files, found none.")
    files = sorted({str(file) for file in places.values()})
    outside = [file for file in files if Path(file).name != file]
    missing = [file for file in files if not (path / file).is_file()]
    if outside or missing:
        raise DataError(
            f"{path / INDEX}: expected files of this folder, found {_some(outside or missing)} "
            f"{'outside it' if outside else 'missing'}. Download the folder again."
        )
    return tuple(files)


def _headers(path: Path, files: tuple[str, ...]) -> Iterator[tuple[str, TensorHeader]]:
    for file in files:
        try:
            with safe_open(path / file, framework="np") as opened:
                for name in opened.keys():  # noqa: SIM118 - no mapping
                    found = opened.get_slice(name)
                    shape = tuple(found.get_shape())
                    yield name, TensorHeader(file=file, shape=shape, dtype=found.get_dtype())
        except SafetensorError as error:
            raise DataError(
                f"{path / file}: expected a safetensors file, found a damaged one ({error}). "
                "Download it again; a git-lfs pointer needs 'git lfs pull'."
            ) from error


def _by_name(headers: Iterator[tuple[str, TensorHeader]], *, where: str) -> dict[str, TensorHeader]:
    """Headers by name; each tensor stands in one file, or it would be chance which one counts."""
    tensors: dict[str, TensorHeader] = {}
    for name, header in headers:
        if name in tensors:
            raise DataError(
                f"{where}: expected each tensor in one file, found {name} in "
                f"{tensors[name].file} and in {header.file}. Remove files of another download."
            )
        tensors[name] = header
    return tensors


def _checked(
    tensors: Mapping[str, TensorHeader], model: ModelJob, *, where: str
) -> dict[str, TensorHeader]:
    expected = tensor_shapes(model)
    if HEAD in tensors and EMBEDDING in tensors and HEAD not in expected:
        # Some tools write a tied head out; the loader compares it with the embedding.
        expected[HEAD] = expected[EMBEDDING]
    if missing := [name for name in expected if name not in tensors]:
        raise DataError(
            f"{where}: expected the tensors of {CONFIG}, found {len(missing)} missing: "
            f"{_some(missing)}. Download the folder again, or name one saved from the whole "
            "causal LM."
        )
    # Buffers that old versions of transformers saved; they follow from the configuration.
    extra = [
        name
        for name in tensors
        if name not in expected and not name.endswith("rotary_emb.inv_freq")
    ]
    if extra:
        raise DataError(
            f"{where}: expected the tensors of {CONFIG} only, found {len(extra)} more: "
            f"{_some(extra)}. They would be lost: name a folder whose configuration says them."
        )
    for name, shape in expected.items():
        found = tensors[name]
        if found.shape != shape or found.dtype not in _DTYPES:
            raise DataError(
                f"{where}/{found.file}: tensor {name}: expected shape {list(shape)} in one of "
                f"{', '.join(sorted(_DTYPES))}, found {list(found.shape)} in {found.dtype}. The "
                f"weights are not those of {CONFIG}, or are quantised."
            )
    return {name: tensors[name] for name in expected}


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _sha256(path: Path) -> str:
    found = path.stat()
    return _sha256_of_state(path, (found.st_ino, found.st_size, found.st_mtime_ns))


@functools.lru_cache(maxsize=4096)
def _sha256_of_state(path: Path, state: tuple[int, int, int]) -> str:
    """A file that did not change is hashed once in a process."""
    return sha256_of(path)
