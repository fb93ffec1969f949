"""Forecasting: what vectors for an index will take, told before anything is written."""
