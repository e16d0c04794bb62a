"""Figures of reliability: exact counts, and how long things take, measured against the scripted broker."""
