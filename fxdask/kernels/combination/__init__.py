"""Rules that combine densities into class scores: one file a rule, one table of all."""
