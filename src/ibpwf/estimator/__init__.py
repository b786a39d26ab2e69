"""Continual learning as a scikit-learn classifier."""

from ibpwf.estimator.classifier import ROWS, ContinualClassifier

__all__ = ["ROWS", "ContinualClassifier"]
