"""The server's HTTP routes beside the binary cache."""
