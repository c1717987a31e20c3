"""Process groups, collectives and the CPU runtime: the first layer that may import torch."""
