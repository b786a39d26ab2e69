"""Continual learning as a scikit-learn classifier."""

from ibpwf.estimator.answering import Answers
from ibpwf.estimator.classifier import ROWS, ContinualClassifier

__all__ = ["ROWS", "Answers", "ContinualClassifier"]
