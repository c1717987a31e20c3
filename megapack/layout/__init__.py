"""Row geometry: exact integer arithmetic in numpy, no torch."""
