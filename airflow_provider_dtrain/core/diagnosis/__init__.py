"""Diagnosis of a training: its short runs, the shares of a step that follow from them, and a report."""
