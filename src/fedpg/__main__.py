"""`python -m fedpg`, the same as `fedpg`."""

import sys

from fedpg.cli import main

sys.exit(main())
