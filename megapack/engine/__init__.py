"""Runs: the training and extraction loops, their schedule, metrics and checkpoints."""
