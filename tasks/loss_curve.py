"""The loss curve as an artifact that is drawn, not only listed."""
