"""Processes, locks, devices and network of this machine."""
