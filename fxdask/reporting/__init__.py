"""HTML reports and their figures: one look for all, and the report of a model."""
