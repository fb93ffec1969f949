"""`hybridr doctor`."""

from __future__ import annotations

import typer

from ..session import Session
from ..verbs import app, verb

MARKS = {True: "ok", False: "FAIL", None: "note"}


@verb(app, "doctor", cluster=True)
def doctor(session: Session) -> None:
    """Check node, cluster, rights and machine; one line each, with its fix. Exit 1 if something fails.

    On the cluster it makes an index hybridr-doctor-… with one document and removes it again.
    """
    from hybridr.doctor.diagnosis import diagnose

    checks = diagnose(session.cluster_settings(), progress=session.output.progress)
    session.output.close()
    width = max(len(check.name) for check in checks)
    for check in checks:
        fix = f"   FIX: {check.fix}" if check.fix else ""
        session.output.line(f"{MARKS[check.ok]:<4}  {check.name:<{width}}  {check.found}{fix}")
    healthy = all(check.ok is not False for check in checks)
    session.output.result({"ok": healthy, "checks": [check._asdict() for check in checks]})
    if not healthy:
        raise typer.Exit(1)
