"""Importing this module registers every stand-in. Triton's kernels are imported when a GPU first needs them."""

from ibpwf.fast import clipping, fused, inferring, kl, optimizers, products, recorded, replayed

__all__ = ["clipping", "fused", "inferring", "kl", "optimizers", "products", "recorded", "replayed"]
