"""Outputs of a batch inference: from the result of a batch to rows, and from rows to a part's file."""
