"""Rows that keep coming, with nobody telling where a task ends: what watches them, what adapts at once, what decides.

`ContinualClassifier(stream=True)` is the way in (docs/streams.md). Nothing here trains a task: a `Stream` says when
one is to be learned, and from which rows.
"""

from ibpwf.streaming.detectors import Detector, make_detector
from ibpwf.streaming.options import StreamOptions
from ibpwf.streaming.stream import Stream

__all__ = ["Detector", "Stream", "StreamOptions", "make_detector"]
