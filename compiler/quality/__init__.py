"""Which number format each linear is in: measured, chosen under a budget, and told."""
