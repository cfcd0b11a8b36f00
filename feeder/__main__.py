"""``python -m feeder``: the command line."""

import sys

from feeder.cli import main

sys.exit(main())
