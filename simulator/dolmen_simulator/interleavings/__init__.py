"""Every interleaving of two calls, with one fault at every point."""
