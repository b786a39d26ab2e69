"""Files from elsewhere, known by their digests: found on this machine, on the web or in package registries, and kept.

Data sets (`ibpwf.lab.data`) and trained networks (`ibpwf.backbones`) are such files.
"""
