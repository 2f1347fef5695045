"""Lets the unit tests import the modules of the examples, which are scripts and not a package."""

import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "git_history"

if str(EXAMPLE) not in sys.path:
    sys.path.append(str(EXAMPLE))
