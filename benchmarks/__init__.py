"""Measurements that write pages of the documentation."""
