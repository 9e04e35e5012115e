"""Helpers shared by the suites; the fixtures themselves stand in tests/conftest.py."""
