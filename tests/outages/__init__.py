"""Outages of real brokers under steady traffic: what arrives, what callers hear, and how long nothing moves.

``python -m tests.outages --full`` runs every scenario at length and prints a table.
"""
