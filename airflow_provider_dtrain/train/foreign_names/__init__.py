"""Names of other platforms that scripts import."""
