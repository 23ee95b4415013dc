"""`python -m ebft`: the command, where its folder is not on the path."""

from __future__ import annotations

import sys

from ebft.cli import main

sys.exit(main())
