"""`hybridr sync --every` as a service: a unit for systemd, to be read and installed by hand.

It holds no password: that stands in a file that only root reads.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

from ..errors import SettingsError


def require_service(index: str) -> None:
    """Raise SettingsError for a name that systemd would read as something else."""
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
