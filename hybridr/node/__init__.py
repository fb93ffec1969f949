"""An OpenSearch node of our own, for trying hybridr and for its tests."""

from .process import logs, running_node, running_url, start, status, stop
from .state import NodeState

__all__ = ["NodeState", "logs", "running_node", "running_url", "start", "status", "stop"]
