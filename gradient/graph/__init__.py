"""The graph writer: the one road by which a server writes to the graph."""
