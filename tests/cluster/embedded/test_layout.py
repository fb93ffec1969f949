"""How a node's home is laid out."""

from __future__ import annotations

import zipfile
from pathlib import Path

from hybridr.cluster.embedded import configuration, layout
from hybridr.cluster.settings import NodeSettings
from hybridr.files import fetching

SYSTEM = layout.Java(Path("/nowhere"), 21, packaged=False)


def test_secure_and_ml_change_the_home_and_the_name_does_not() -> None:
    def recipe(**values: object) -> dict[str, object]:
        return layout.choose_parts(NodeSettings(**values), SYSTEM).recipe()

    assert recipe(name="a", heap="2g") == recipe(name="b")
    assert recipe(with_ml=True) != recipe()
    assert recipe(version="2.19.1", secure=True) != recipe(version="2.19.1")


def test_a_packaged_java_brings_its_repairs() -> None:
    packaged = layout.Java(Path("/nowhere"), 25, packaged=True)
    assert set(fetching.WORD_BREAKING) <= set(layout.choose_parts(NodeSettings(), packaged).artifacts())
    options = "-Xms1g\n20-:--add-modules=jdk.incubator.vector\n9-:-Xlog:gc*:file=logs/gc.log\n-Dkept=1\n"
    assert configuration.trim_options(options, packaged) == "-Dkept=1\n"
    assert configuration.trim_options(options, SYSTEM) == "20-:--add-modules=jdk.incubator.vector\n-Dkept=1\n"


def test_a_distribution_is_unpacked_without_what_nobody_needs(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "opensearch.zip", "w") as archive:
        for name in ("bin/opensearch", "modules/ingest-geoip/places.mmdb", "modules/ingest-common/a.jar"):
            archive.writestr(f"opensearch-3.6.0/{name}", name)
    (tmp_path / "out").mkdir()
    top = layout.unpack(tmp_path / "opensearch.zip", tmp_path / "out")
    assert {str(file.relative_to(top)) for file in top.rglob("*") if file.is_file()} == {
        "bin/opensearch",
        "modules/ingest-common/a.jar",
    }
    assert (top / "bin" / "opensearch").stat().st_mode & 0o111


def test_engines_are_there_when_somebody_put_them_where_a_whole_distribution_has_them(tmp_path: Path) -> None:
    (tmp_path / layout.ENGINES).mkdir(parents=True)
    assert not layout.has_engines(tmp_path)
    (tmp_path / layout.ENGINES / "libopensearchknn_faiss_avx512.so").touch()
    assert layout.has_engines(tmp_path)
