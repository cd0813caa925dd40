"""Relaunch: all behaviour. Imports neither Textual nor the screens package, and importing it loads nothing else."""

__version__ = "0.1.0"
