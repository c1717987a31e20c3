"""What holds for all tests.

Property tests draw the same examples in every run, so that a red run can be repeated;
`HYPOTHESIS_PROFILE=random` draws new ones. A test that imports megatron-core in this process gets
what a rank gets: 8 s of import instead of 25 s, and no Transformer Engine.
"""

import importlib.abc
import os
import sys

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


class _BeforeMegatron(importlib.abc.MetaPathFinder):
    """Finds nothing; prepares the import of megatron-core when it is about to happen."""

    def find_spec(self, fullname, path, target=None):
        if fullname == "megatron.core":
            sys.meta_path.remove(self)
            from megapack.parallel.runtime import prepare_import

            prepare_import()


sys.meta_path.insert(0, _BeforeMegatron())
