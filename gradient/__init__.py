"""The server of Gradient and the operator's command line."""
