"""Rules that combine densities into class scores: one file per rule, one table of all rules."""
