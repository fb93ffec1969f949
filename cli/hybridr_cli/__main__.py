"""The entry point of `python -m hybridr_cli`."""

import sys

from . import main

sys.exit(main())
