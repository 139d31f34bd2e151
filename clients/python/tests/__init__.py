"""Tests of the client: `python -m unittest` in the folder above. They need nothing else."""
