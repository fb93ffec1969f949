from __future__ import annotations

import json
import subprocess
import sys


def test_settings_verb_prints_json() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hybridr_cli", "settings", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["reindex.engine"] == {"value": "lucene", "from": "default"}
    assert done.stderr == ""
