"""The paper's tables and figures as data: what to run, what to measure in it, what the paper found."""
