"""`python -m kvlayout`."""

import sys

from kvlayout.cli import main

sys.exit(main())
