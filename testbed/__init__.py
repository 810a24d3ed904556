"""Machinery that tests and benchmarks share: test hosts, PostgreSQL servers, complete Airflows."""
