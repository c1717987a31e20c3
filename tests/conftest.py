"""Property tests draw the same examples in every run, so that a red run can be repeated.

`HYPOTHESIS_PROFILE=random` draws new ones.
"""

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
