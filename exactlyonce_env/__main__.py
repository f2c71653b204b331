"""`python -m exactlyonce_env`: the same program as the `exactlyonce` command."""

from __future__ import annotations

import sys

from exactlyonce_env.cli import main
from exactlyonce_env.cli.origin import forget_working_directory

if __name__ == "__main__":
    forget_working_directory()
    sys.exit(main())
