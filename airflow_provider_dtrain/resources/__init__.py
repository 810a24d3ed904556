"""Records of the nouns that users see: the same for pages, both programs and the Python client.

Values that ranks or users choose hold no NaN and no infinity, but their names, because JSON has neither. A field may be
added at any time, so that a record with a default also comes from an older server.
"""
