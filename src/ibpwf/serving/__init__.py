"""Models answered, and taught, over HTTP: every version of a model out of one folder (docs/serving.md)."""
