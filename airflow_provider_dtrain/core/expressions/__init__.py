"""Filter expressions over trials: their language, its names and its parser."""
