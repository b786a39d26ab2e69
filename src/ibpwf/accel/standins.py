"""Importing this module registers every stand-in. Triton's kernels are imported when a GPU first needs them."""

from ibpwf.accel import inferring, kl, optimizers, products, recorded

__all__ = ["inferring", "kl", "optimizers", "products", "recorded"]
