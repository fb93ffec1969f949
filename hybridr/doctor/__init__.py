"""The doctor: checks of the cluster, an index and this machine.

It says what works here, what is known to go wrong and what an index holds, and measures what the graph of
vectors finds. `forecasting.py` says what vectors for an index will take before anything is written.
"""
