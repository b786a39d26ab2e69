"""The same answers sooner: every module here stands for a reference function and is tested against it.

Importing this package registers the stand-ins (`ibpwf.dispatch`). `accelerate=False` or IBPWF_ACCELERATE=0
turns all of them off.
"""
