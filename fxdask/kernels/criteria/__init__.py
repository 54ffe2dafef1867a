"""Criteria that rank columns: one file per family, one table of all criteria."""
