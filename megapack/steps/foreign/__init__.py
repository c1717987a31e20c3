"""Audit of packed data that other tools made: readers a shape, and the checks they share."""
