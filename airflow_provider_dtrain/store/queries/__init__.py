"""Queries that return the records of ``resources/``, limited by the rights of a reader, for pages and programs."""
