"""Starting ranks: one process tree for one run, watched to its end and never outlived."""
