from __future__ import annotations

import json
from pathlib import Path

from hybridr.files.local import write_manifest
from hybridr.training.ranker import read_origins


def test_the_origins_name_the_method_of_a_trained_rem(tmp_path: Path) -> None:
    for name, entry in (("plain", {}), ("robust", {"method": {"name": "idro", "source": "Yu et al."}})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(json.dumps(entry))
        write_manifest(
            tmp_path / name, stage="rem", settings={}, inputs={}, outputs=["file"], extra={"rem": entry}
        )
    names = {"dam": "some-dam"}
    dam = tmp_path / "some-dam"
    assert read_origins(dam, tmp_path / "plain") == names | {"rem": "plain"}
    assert read_origins(dam, tmp_path / "robust") == names | {"rem": "robust", "method": "Yu et al."}
    assert read_origins(tmp_path / "robust", None) == {"dam": "robust", "rem": None, "method": "Yu et al."}
    assert read_origins(dam, None) == names | {"rem": None}
