"""Flows: chains of tasks, one page each. No classes are defined here."""
