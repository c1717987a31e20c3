"""`python -m megapack.cli`: the same as `megapack`."""

import sys

from megapack.cli.main import main

sys.exit(main())
