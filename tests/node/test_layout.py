"""How a node's home is laid out, and the libraries that ml-commons needs to run a model."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from hybridr.errors import SettingsError
from hybridr.node import artifacts, configuration, java, layout, process
from hybridr.node.settings import NodeSettings
from support.places import above

SYSTEM = java.Java(Path("/nowhere"), 21, packaged=False)

LIBRARIES = ("libtorch.so", "libtorch_cpu.so", "libc10.so", "libgomp-98b21ff3.so.1")


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Stand in for the downloads: archives of the same members, and a list of what was asked for."""
    (tmp_path / "home").mkdir()
    for folder in (tmp_path / "home", tmp_path, *above(tmp_path)):
        folder.chmod(0o755)
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HYBRIDR_CACHE", raising=False)
    asked: list[object] = []
    members = {
        artifacts.PYTORCH: ["META-INF/MANIFEST.MF", *(layout.LIBRARIES + name for name in LIBRARIES)],
        artifacts.PYTORCH_BRIDGE: [layout.BRIDGE, layout.BRIDGE.replace("/cpu/", "/cpu-precxx11/")],
    }

    def fetch(wanted: list[artifacts.Artifact], **_: object) -> dict[artifacts.Artifact, Path]:
        asked.append(wanted)
        for artifact in wanted:
            with zipfile.ZipFile(tmp_path / artifact.file_name, "w") as archive:
                for name in members[artifact]:
                    archive.writestr(name, name)
        return {artifact: tmp_path / artifact.file_name for artifact in wanted}

    monkeypatch.setattr(layout, "fetch", fetch)
    return asked


def test_the_libraries_are_laid_where_the_node_looks(tmp_path: Path, fetched: list[object]) -> None:
    folder = layout.ensure_natives()
    assert layout.ensure_natives() == folder
    assert len(fetched) == 1
    for data in (tmp_path / "one", tmp_path / "two", tmp_path / "one"):
        layout.link_natives(data, folder)
        place = data / "ml_cache" / "pytorch" / "2.5.1-cpu-precxx11-linux-x86_64"
        assert {path.name for path in place.iterdir()} == {*LIBRARIES, "0.31.1-libdjl_torch.so"}
        assert (place / "0.31.1-libdjl_torch.so").read_text() == layout.BRIDGE
        assert (place / "libc10.so").read_text() == f"{layout.LIBRARIES}libc10.so"


def test_a_layout_that_was_killed_is_made_again(tmp_path: Path, fetched: list[object]) -> None:
    folder = layout.ensure_natives()
    left = folder.parent / f".{folder.name}-left"
    folder.rename(left)
    assert layout.ensure_natives() == folder
    assert not left.exists()


def test_an_artifact_with_a_classifier_is_named_as_the_repository_does() -> None:
    pinned = artifacts.PYTORCH
    assert pinned.file_name == "pytorch-native-cpu-2.5.1-linux-x86_64.jar"
    assert pinned.coordinates == "ai.djl.pytorch:pytorch-native-cpu:2.5.1:jar:linux-x86_64"
    assert artifacts.PYTORCH_BRIDGE.coordinates == "ai.djl.pytorch:pytorch-jni:2.5.1-0.32.0:jar"


def test_where_they_cannot_be_had_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="only ml-commons uses them"):
        process.start(NodeSettings(name="none", with_natives=True))
    monkeypatch.setattr(layout.platform, "machine", lambda: "aarch64")
    with pytest.raises(SettingsError, match="Linux x86_64 only, this machine is"):
        process.start(NodeSettings(name="none", with_ml=True, with_natives=True))


def test_secure_and_ml_change_the_home_and_the_name_does_not() -> None:
    def recipe(**values: object) -> dict[str, object]:
        return layout.choose_parts(NodeSettings(**values), SYSTEM).recipe()

    assert recipe(name="a", heap="2g") == recipe(name="b")
    assert recipe(with_ml=True) != recipe()
    assert recipe(version="2.19.1", secure=True) != recipe(version="2.19.1")


def test_a_packaged_java_brings_its_repairs() -> None:
    packaged = java.Java(Path("/nowhere"), 25, packaged=True)
    assert set(artifacts.WORD_BREAKING) <= set(layout.choose_parts(NodeSettings(), packaged).artifacts())
    options = (
        "-Xms1g\n20-:--add-modules=jdk.incubator.vector\n9-:-Xlog:gc*:file=logs/gc.log:utctime\n-Dkept=1\n"
    )
    assert configuration.trimmed(options, packaged) == "-Dkept=1\n"
    assert configuration.trimmed(options, SYSTEM) == "20-:--add-modules=jdk.incubator.vector\n-Dkept=1\n"


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
