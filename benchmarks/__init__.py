"""Measurements: medians and ratios taken in one run. `make bench` runs them all."""
