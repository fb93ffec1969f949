"""Options of Java with which a node of the tests starts and works sooner."""

from __future__ import annotations

QUICK = (
    *("-XX:TieredStopAtLevel=1", "-XX:-UseG1GC", "-XX:+UseSerialGC"),
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote"),
)
OWN_OPTIONS = "\n".join(QUICK) + "\n"
"""A file of `jvm.options.d`."""
