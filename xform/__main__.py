"""`python -m xform`."""

import sys

from xform.cli import main

if __name__ == "__main__":
    sys.exit(main())
