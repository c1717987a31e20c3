"""The examples in the docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

import megapack.packing

MODULES = [m.name for m in pkgutil.iter_modules(megapack.packing.__path__) if m.name != "kernels"]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(f"megapack.packing.{name}")).failed == 0
