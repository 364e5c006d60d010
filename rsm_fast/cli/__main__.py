"""``python -m rsm_fast.cli`` is ``rsm-fast``."""

import sys

from rsm_fast.cli import main

if __name__ == "__main__":
    sys.exit(main())
