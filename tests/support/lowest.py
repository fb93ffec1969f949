"""The least versions that pyproject.toml allows, as constraints for pip; `make test-lowest` installs them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
EXTRAS = ("parquet", "serve")


def lowest() -> list[str]:
    """Give `name==version` of the dependencies and of two extras."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(one for name in EXTRAS for one in project["optional-dependencies"][name]),
    ]
    return [re.sub(r">=", "==", one.partition(";")[0].strip()) for one in wanted]


if __name__ == "__main__":
    sys.stdout.write("\n".join(lowest()) + "\n")
