"""A continual classifier that learns from and answers files: what `ibpwf learn`, `predict` and `evaluate` do.

Files are read by `userdata`, learning and answering is `ContinualClassifier`'s; here the two meet in a model folder.
"""
