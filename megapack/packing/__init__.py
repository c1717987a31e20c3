"""Documents to rows: plans over lengths first, tokens touched last."""
