"""Background work: what keeps a database fast, small and whole while everybody goes on using it."""


def never() -> bool:
    """The deadline of those who have all the time in the world."""
    return False
