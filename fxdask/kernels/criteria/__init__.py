"""Criteria that rank columns: one file a family, one table of all."""
