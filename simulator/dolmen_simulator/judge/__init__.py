"""What must hold: a model in plain Python, a ledger of what was committed, and the checks between them."""
