"""Ask a node whether it is ready: over the loopback, past any proxy, with its certificate and password."""

from __future__ import annotations

import base64
import http.client
import json
from pathlib import Path

from ..errors import NodeError
from .configuration import LOOPBACK
from .state import NodeState

TIMEOUT_S = 10
HEALTH = "/_cluster/health?wait_for_status=yellow&timeout=5s"


def is_ready(state: NodeState) -> bool:
    """Tell whether the node's health is at least yellow; raises NodeError when it refuses the password."""
    connection = connect(state)
    try:
        connection.request("GET", HEALTH, headers=credentials(state))
        answer = connection.getresponse()
        content = answer.read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    if answer.status == 401:
        raise NodeError(
            f"node '{state.name}' refuses the password in {state.password_file}",
            hint=f"put the right one there, or hybridr node stop --name {state.name} --delete-data",
        )
    return answer.status == 200 and json.loads(content)["status"] != "red"


def connect(state: NodeState) -> http.client.HTTPConnection:
    """Open a connection that trusts only the node's own authority."""
    if not state.secure:
        return http.client.HTTPConnection(LOOPBACK, state.port, timeout=TIMEOUT_S)
    import ssl

    context = ssl.create_default_context(cafile=state.ca_certs)
    return http.client.HTTPSConnection(LOOPBACK, state.port, timeout=TIMEOUT_S, context=context)


def credentials(state: NodeState) -> dict[str, str]:
    """Give the header that names the user, for a secured node."""
    if state.password_file is None:
        return {}
    password = Path(state.password_file).read_text(encoding="utf-8").strip()
    return {"Authorization": "Basic " + base64.b64encode(f"{state.user}:{password}".encode()).decode()}
