"""What `hybridr search` of the command line imports: what it needs and no more."""

from __future__ import annotations

import re
import subprocess
import sys

from support.corpus import reindexed

NOT_NEEDED = {
    *("torch", "transformers", "scipy", "onnx"),
    *("hybridr.evaluation", "hybridr.encoders.export.exporting", "hybridr.relevance.tuning"),
}


def test_a_search_imports_no_measures_and_no_exporter(cluster, index_name, minilm):
    reindexed(cluster, index_name, 20, minilm)
    command = [sys.executable, "-X", "importtime", "-m", "hybridr_cli", "search", index_name, "anchor needle"]
    done = subprocess.run(
        [*command, "--url", cluster.url, "--encoder", str(minilm)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    imported = re.findall(r"^import time:.*\|\s+([\w.]+)$", done.stderr, re.M)
    assert "hybridr.search.search" in imported
    assert NOT_NEEDED & set(imported) == set()
