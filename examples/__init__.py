"""Ten-line examples: packed rows in other trainers. `tiny.py` has the data and models beside."""
