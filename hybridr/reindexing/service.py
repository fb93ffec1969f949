"""`hybridr sync --every` as a service: a unit for systemd and a manifest for Kubernetes.

Both are texts to be read and installed by hand. Neither holds a password: it stands in a file that only root
reads, or in a Secret.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import orjson

from ..errors import SettingsError

IMAGE = "hybridr-encoder"  # of opensearch/Dockerfile


def require_service(index: str) -> None:
    """Raise SettingsError for a name that systemd or Kubernetes would read as something else."""
    if not re.fullmatch(r"[\w.+-]+", index):
        raise SettingsError(
            f"a service cannot be named after {index!a}",
            hint="an alias of letters, digits, '.', '_', '+' and '-'",
        )


def literal(text: str) -> str:
    """Write a line so that systemd puts nothing in the place of its %. Raises SettingsError for two lines."""
    if not text.isprintable():
        raise SettingsError(f"{text!a} has characters that no unit can hold", hint="choose another path")
    return text.replace("%", "%%")


def systemd_unit(index: str, every: str, encoder: Path | None = None) -> str:
    """Write a unit that keeps the vectors of `index` up to date as the user of this process.

    The encoder is the given folder, else the one that this user's hybridr remembers. Raises SettingsError.
    """
    require_service(index)
    program = Path(shutil.which("hybridr") or sys.argv[0]).absolute()
    command = [str(program), "sync", index, "--every", every]
    command += ["--encoder", str(encoder.absolute())] if encoder else []
    home = os.environ.get("HYBRIDR_HOME")
    lines = [
        "[Unit]",
        f"Description=hybridr sync {index}",
        "After=network-online.target",
        "Wants=network-online.target",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        f"User={getpass.getuser()}",
        f"# HYBRIDR_URL, HYBRIDR_USER, HYBRIDR_PASSWORD; chmod 600\nEnvironmentFile=/etc/hybridr/{index}.env",
        *([f"Environment={literal(shlex.quote(f'HYBRIDR_HOME={home}'))}"] if home else []),
        f"ExecStart={literal(shlex.join(command)).replace('$', '$$')}",
        "Restart=always",
        "RestartSec=10",
        "Nice=5",
        "NoNewPrivileges=yes",
        "PrivateTmp=yes",
        "ProtectSystem=full",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def kubernetes_manifest(index: str, every: str) -> str:
    """Write a Deployment of one replica with the image of `opensearch/Dockerfile`, as JSON, which is YAML.

    The Secret of its name holds HYBRIDR_URL, HYBRIDR_USER and HYBRIDR_PASSWORD; the claim of its name the
    encoder folder. Raises SettingsError.
    """
    require_service(index)
    name = "hybridr-sync-" + re.sub(r"[^a-z0-9-]+", "-", index.lower()).strip("-")[:40].strip("-")
    labels = {"app": name}
    volumes = [
        {"name": "encoder", "persistentVolumeClaim": {"claimName": name, "readOnly": True}},
        {"name": "scratch", "emptyDir": {}},
    ]
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container_of(index, every, name)], "volumes": volumes},
            },
        },
    }
    return orjson.dumps(manifest, option=orjson.OPT_INDENT_2).decode() + "\n"


def container_of(index: str, every: str, secret: str) -> dict[str, Any]:
    """Describe the container: no rights, no writes but into /tmp, the encoder at /encoder."""
    return {
        "name": "sync",
        "image": IMAGE,
        "command": ["hybridr", "sync", index, "--every", every, "--encoder", "/encoder", "--json"],
        "envFrom": [{"secretRef": {"name": secret}}],
        "env": [{"name": "HYBRIDR_HOME", "value": "/tmp/hybridr"}],
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "encoder", "mountPath": "/encoder", "readOnly": True},
            {"name": "scratch", "mountPath": "/tmp"},
        ],
    }
