"""`python -m fedpg.cli`."""

import sys

from fedpg.cli import main

sys.exit(main())
