"""The parts of benchmarks/trained_networks.py."""
