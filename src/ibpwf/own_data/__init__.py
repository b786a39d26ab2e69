"""A continual classifier that learns from and answers files: what `ibpwf learn`, `predict` and `evaluate` do.

Files are read by `ibpwf.data`, learning and answering is `ContinualClassifier`'s; here they meet in a model folder.
"""
