"""Stand-ins for the base images, made locally where the official ones are not in the engine.

They are tagged like the official ones while the tests run and lose those tags afterwards, so that nobody
takes them for real later. What is kept to be faster next time is named `hybridr-standin/...`.
"""

import hashlib
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hybridr.cluster.embedded.configuration import trim_options
from hybridr.cluster.embedded.layout import ensure_home, find_java
from hybridr.cluster.settings import NodeSettings
from hybridr.files.fetching import Artifact, fetch_artifacts
from support.engine import package_mirror, run
from support.places import TESTS

PYTHON = "python:3.11-slim-bookworm"
OPENSEARCH = "opensearchproject/opensearch:3.6.0"
DASHBOARDS = "opensearchproject/opensearch-dashboards:3.6.0"
RELEASE = "bookworm"
INCLUDED = "python3,python3-venv,ca-certificates,curl"
HERE = TESTS / "compose" / "standin"
LABEL = "hybridr.standin"
SECURITY = Artifact(
    "org.opensearch.plugin",
    "opensearch-security",
    "3.4.0.0",
    "zip",
    "fc164c084979f7f793d295b6bca56bf8bee76dafb762adef9f14fa872e0a7596",
    49_263_978,
)


@contextmanager
def base_images() -> Iterator[dict[str, bool]]:
    """Have the base images for the length of the block; says of each whether it is a stand-in."""
    makers = {PYTHON: python_standin, OPENSEARCH: opensearch_standin}
    stood_in = {name: not is_official(name) for name in makers}
    try:
        for name, needed in stood_in.items():
            if needed:
                run("docker", "tag", makers[name](), name)
        yield stood_in
    finally:
        for name in (name for name, needed in stood_in.items() if needed and exists(name)):
            run("docker", "rmi", "--no-prune", name)


def exists(image: str) -> bool:
    """Tell whether the engine has an image."""
    return subprocess.run(["docker", "image", "inspect", image], capture_output=True).returncode == 0


def is_official(image: str) -> bool:
    """Tell whether the engine has an image of this name that we did not make."""
    if not exists(image):
        return False
    return not run(
        "docker", "image", "inspect", "-f", f'{{{{index .Config.Labels "{LABEL}"}}}}', image
    ).strip()


def python_standin() -> str:
    """Make Debian's own Python, which is 3.11 too, look like the official slim image."""
    image = f"hybridr-standin/python:{RELEASE}-{digest(INCLUDED)}"
    if not exists(image):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "root"
            mirror = filter(None, [package_mirror(RELEASE)])  # else debootstrap's own default
            run("debootstrap", "--variant=minbase", f"--include={INCLUDED}", RELEASE, root, *mirror)
            shutil.rmtree(root / "var" / "cache" / "apt" / "archives")
            (root / "usr" / "local" / "bin" / "python").symlink_to("/usr/bin/python3")
            with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
                run("docker", "import", "-c", f"LABEL {LABEL}=python", "-", image, stdin=tar.stdout)
    return image


def opensearch_standin() -> str:
    """Put hybridr's embedded OpenSearch, with its Java, where the official image has its own."""
    settings = NodeSettings(java="packaged")
    java = find_java(settings)
    home = ensure_home(settings, java)
    recipe = "".join((HERE / name).read_text() for name in ("Dockerfile", "entrypoint.sh"))
    image = (
        f"hybridr-standin/opensearch:3.6.0-{digest(home.name + str(java.home) + SECURITY.sha256 + recipe)}"
    )
    if not exists(image):
        base = python_standin()
        with tempfile.TemporaryDirectory() as folder:
            context = Path(folder)
            shutil.copytree(home, context / "home", symlinks=True)
            shutil.copytree(java.home, context / "jdk")
            options = context / "home" / "config" / "jvm.options"
            options.write_text(trim_options(options.read_text(), java))
            adopt_security(context / "security.zip")
            for name in ("Dockerfile", "entrypoint.sh"):
                shutil.copy(HERE / name, context)
            run("docker", "build", "-q", "-t", image, "--build-arg", f"BASE={base}", context)
    return image


def adopt_security(path: Path) -> None:
    """Make the newest security plugin that is public, of 3.4.0, fit 3.6.0: a test bed, not for use.

    Its FIPS jars are in the way of those that 3.6.0 brings itself (opensearch.md 10.1).
    """
    with zipfile.ZipFile(fetch_artifacts([SECURITY])[SECURITY]) as found, zipfile.ZipFile(path, "w") as made:
        for entry in found.infolist():
            content = found.read(entry)
            if entry.filename == "plugin-descriptor.properties":
                content = content.replace(b"opensearch.version=3.4.0", b"opensearch.version=3.6.0")
            if "-fips-" not in entry.filename:
                made.writestr(entry, content)


def drop_leftovers() -> None:
    """Remove the unnamed images that earlier builds of the encoder left; the newest speeds up the next."""
    found = run("docker", "images", "-q", "-f", "dangling=true", "-f", "label=hybridr.image").split()
    for image in list(dict.fromkeys(found))[1:]:
        subprocess.run(["docker", "rmi", image], capture_output=True)


def digest(text: str) -> str:
    """Give a short name for what an image is made of."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
