"""What pydantic found wrong with a job, in words a person can act on: one line a fault.

Unknown fields are told with the known ones and the nearest of them, lists with how to write them.
"""

import difflib
import json
from collections.abc import Sequence
from enum import Enum
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

Path = tuple[int | str, ...]


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One line a fault: field path, what was wrong, what was found.

    Args:
        error: what the model raised.
        model: the job that was to be made.
    """
    # A list of wrong entries is called empty too: its entries say what is wrong.
    faults = error.errors(include_url=False)
    told = [one for one in faults if one["type"] != "too_short" or not one["input"]]
    return "\n".join(_line(fault, model) for fault in told or faults)


def _line(fault: Any, model: type[BaseModel]) -> str:  # noqa: ANN401 - pydantic's ErrorDetails
    path: Path = fault["loc"]
    where = ".".join(str(part) for part in path) or "job"
    if fault["type"] == "extra_forbidden":
        return f"  {where}: {_unknown(str(path[-1]), _models(model, path[:-1]))}"
    # A check across fields says itself what it found; its input is the whole job.
    own_words = fault["type"] == "missing" or isinstance(fault["input"], dict)
    found = "" if own_words else f" (found {fault['input']!r})"
    told = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "tuple_type":
        told = f"expected a list{_list_form(fault['input'], _annotation(model, path))}"
    return f"  {where}: {told}{found}"


def _unknown(name: str, owners: Sequence[type[BaseModel]]) -> str:
    known = [field for owner in owners for field in owner.model_fields]
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"; did you mean {near[0]}?" if near else "."
    return f"no such field{guess} Known: {', '.join(known)}"


def _list_form(value: object, annotation: object) -> str:
    """How to write a list of that, and what may stand in it."""
    if not isinstance(value, str | int | float):
        return ""
    form = f", written {json.dumps([value])!r}"
    choices = next(
        (one for one in get_args(annotation) if isinstance(one, type) and issubclass(one, Enum)),
        None,
    )
    return form if choices is None else f"{form}; known: {', '.join(o.value for o in choices)}"


def _annotation(model: type[BaseModel], path: Path) -> object:
    """The type of the field at a path, None when there is none."""
    owners = _models(model, path[:-1])
    fields = [owner.model_fields[str(path[-1])] for owner in owners if _has(owner, path[-1])]
    return fields[0].annotation if fields else None


def _models(model: type[BaseModel], path: Path) -> list[type[BaseModel]]:
    """The models at a path; indices of lists are passed over."""
    owners = [model]
    for part in path:
        if isinstance(part, str):
            owners = [
                below
                for owner in owners
                if _has(owner, part)
                for below in _models_in(owner.model_fields[part].annotation)
            ]
    return owners


def _has(owner: type[BaseModel], part: int | str) -> bool:
    return part in owner.model_fields


def _models_in(annotation: object) -> list[type[BaseModel]]:
    """Models that stand in an annotation: by itself, or inside `tuple[...]` or `... | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [one for inner in get_args(annotation) for one in _models_in(inner)]
