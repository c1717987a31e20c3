"""Import one file of a peer without the packages around it.

Some peers pin other versions of what we use, or import half the field in their `__init__`. Their
algorithm often stands in one file that needs none of that: with empty parent packages in
`sys.modules` that file is imported as published, and nothing else of the peer runs.
"""

import importlib
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from types import ModuleType


def import_alone(
    module: str, *, stand_ins: Mapping[str, Mapping[str, object]] | None = None
) -> ModuleType:
    """Import a module whose parent packages' `__init__` must not run.

    Args:
        module: dotted name, of an installed package.
        stand_ins: modules to put in place before, as name to attributes: for imports that the
            measured code needs only as type annotations. Their parents are emptied too.

    Returns:
        The module. What it imports from its own package is imported alone as well, as far as the
        parent folders of `module` and of the stand-ins go.

    Raises:
        ImportError: the package, or something the file needs, is not installed.
    """
    for name, attributes in (stand_ins or {}).items():
        empty_package(name.rpartition(".")[0])
        stand_in = ModuleType(name)
        vars(stand_in).update(attributes)
        sys.modules[name] = stand_in
    empty_package(module.rpartition(".")[0])
    return importlib.import_module(module)


def empty_package(name: str) -> None:
    """Put a package and its parents in place without running their `__init__`.

    Raises:
        ImportError: it is not installed.
    """
    if not name or name in sys.modules:
        return
    parent = name.rpartition(".")[0]
    empty_package(parent)
    spec = PathFinder.find_spec(name, sys.modules[parent].__path__ if parent else None)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"expected the package {name}, found none", name=name)
    package = ModuleType(name)
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules[name] = package
