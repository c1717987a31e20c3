"""Distillation, before any rank starts: teachers found, compared and checked. Loads no torch."""
