"""The kernels that benchmarks/kernel.py measures, each behind the same small adapter."""
