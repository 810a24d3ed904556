"""Fault tests on real hosts: engines in separate processes, ranks without torch, a checker independent of the store."""
