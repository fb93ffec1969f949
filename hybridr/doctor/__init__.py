"""The doctor: checks of the cluster, an index and this machine.

It checks what works here, what is known to go wrong and what an index holds, and measures the recall of the
vector graph. `forecasting.py` estimates the time of a reindex before anything is written.
"""
