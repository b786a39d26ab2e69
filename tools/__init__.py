"""Programs that write this repository's own pages and pictures from the result files and the program."""
