"""The graph: what is known, what may start, what failed."""
