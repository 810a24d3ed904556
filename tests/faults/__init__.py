"""Faults on real hosts: engines in processes of their own, ranks without torch, and a checker that trusts no store."""
