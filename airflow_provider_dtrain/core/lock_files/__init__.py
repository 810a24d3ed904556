"""Lock files: the exact packages of an environment, read without resolving anything."""
